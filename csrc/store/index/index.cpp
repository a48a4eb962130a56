// SPDX-License-Identifier: Apache-2.0
#include "store/index/index.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "base/fork.h"
#include "store/directory.h"
#include "store/index/index_statements.h"
#include "store/index/schema.h"
#include "store/scope_filter.h"

namespace modcache::store {
namespace {

constexpr char kWriteSettings[] =
    "PRAGMA journal_mode=WAL;"
    // A commit survives the death of the process without a sync; flush syncs the WAL.
    "PRAGMA synchronous=NORMAL;"
    "PRAGMA journal_size_limit=4194304;"
    "PRAGMA temp_store=MEMORY;";
constexpr std::int64_t kGreatestSequence = std::int64_t{1} << 62;
constexpr char kCreateSettings[] = "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;";

Result<std::uint64_t> segment_named(std::string_view name) {
  const auto segment = parse_segment_name(std::string(name));
  if (!segment) return Status::corruption("the database names an impossible segment");
  return *segment;
}

// Of a row whose second column is the offset, and the others follow in their order. One with
// numbers that modcache never writes means that the database is broken, and not the entry.
Result<Location> location_in(const Query& query, std::uint64_t segment) {
  if (query.number(1) < 0 || query.number(2) < 0 || query.number(3) < 0 || query.number(4) <= 0) {
    return Status::corruption("the database has an impossible row");
  }
  Location location;
  location.segment = segment;
  location.offset = static_cast<std::uint64_t>(query.number(1));
  location.header_size_bytes = static_cast<std::uint32_t>(query.number(2));
  location.payload_size_bytes = static_cast<std::uint64_t>(query.number(3));
  location.sequence = static_cast<Sequence>(query.number(4));
  location.run_us = query.number(5);
  return location;
}

}  // namespace

bool is_cleared_by(const Clear& clear, const Context& context, std::string_view key,
                   Sequence sequence, std::int64_t stored_at_us) {
  if (sequence >= clear.sequence) return false;
  if (clear.context == Digest128{}) return covers(clear.filter, context, key, stored_at_us);
  // The digest names one context, whatever its scope looks like, and the prefix is a whole key.
  const std::int64_t before_us = clear.filter.older_than_us;
  return clear.context == context.digest && key == clear.filter.key_prefix &&
         (before_us == 0 || stored_at_us < before_us);
}

Index::Index()
    : fork_ticket_(hold_across_fork(mutex_)), statements_(std::make_unique<Statements>()) {}

Index::~Index() {
  {
    MutexLock lock(mutex_);
    statements_ = nullptr;
    database_ = nullptr;
  }
  stop_holding_across_fork(fork_ticket_);
}

Result<std::unique_ptr<Index>> Index::create(fs::FileSystem& file_system, const std::string& path) {
  std::unique_ptr<Index> index(new Index);
  MutexLock lock(index->mutex_);
  const auto mode = path.empty() ? Database::Mode::kMemory : Database::Mode::kCreate;
  auto database = Database::open(file_system, path, mode, 0);
  if (!database.is_ok()) return database.status();
  index->database_ = std::move(database).value();
  MODCACHE_RETURN_IF_ERROR(index->database_->execute(kCreateSettings));
  MODCACHE_RETURN_IF_ERROR(create_schema(*index->database_));
  MODCACHE_RETURN_IF_ERROR(index->prepare_writing());
  MODCACHE_RETURN_IF_ERROR(index->prepare_reading());
  return index;
}

Result<std::unique_ptr<Index>> Index::open(fs::FileSystem& file_system, const std::string& path,
                                           Database::Mode mode, std::int64_t patience_ms,
                                           const std::function<void()>& before_migration) {
  std::unique_ptr<Index> index(new Index);
  MutexLock lock(index->mutex_);
  auto database = Database::open(file_system, path, mode, patience_ms);
  if (!database.is_ok()) return database.status();
  index->database_ = std::move(database).value();
  auto version = check_schema(*index->database_);
  if (!version.is_ok()) return version.status();
  if (mode == Database::Mode::kWrite) {
    MODCACHE_RETURN_IF_ERROR(index->database_->execute(kWriteSettings));
    if (version.value() < kUserVersion) {
      if (before_migration) before_migration();
      MODCACHE_RETURN_IF_ERROR(migrate_schema(*index->database_, version.value()));
    }
    MODCACHE_RETURN_IF_ERROR(index->prepare_writing());
  }
  MODCACHE_RETURN_IF_ERROR(index->prepare_reading());
  return index;
}

Result<Transaction> Index::begin_writing() {
  if (!is_writable_) return Status::io_error("the database was opened for reading");
  return Transaction::begin(*database_);
}

Result<Location> Index::find(const Digest128& context, std::string_view key) {
  const std::string digest = context.bytes();
  MutexLock lock(mutex_);
  Query query(statements_->find);
  auto has_row = query.bind_blob(digest).bind_blob(key).step();
  if (!has_row.is_ok()) return has_row.status();
  if (!has_row.value()) return Status::not_found();
  auto segment = segment_named(query.bytes(0));
  if (!segment.is_ok()) return segment.status();
  return location_in(query, segment.value());
}

Result<std::vector<std::optional<Location>>> Index::find_all(
    const Digest128& context, const std::vector<std::string_view>& keys,
    const std::vector<std::size_t>& rows) {
  std::vector<std::optional<Location>> locations(rows.size());
  MutexLock lock(mutex_);
  auto transaction = ReadTransaction::begin(*database_);
  if (!transaction.is_ok()) return transaction.status();
  auto context_id = known_context_id(context);
  if (!context_id.is_ok()) return context_id.status();
  if (context_id.value() == 0) return locations;
  std::map<std::int64_t, std::uint64_t> segments;  // by the database's number
  for (std::size_t place = 0; place < rows.size(); ++place) {
    Query query(statements_->find_in_context);
    auto has_row = query.bind(context_id.value()).bind_blob(keys[rows[place]]).step();
    if (!has_row.is_ok()) return has_row.status();
    if (!has_row.value()) continue;
    const auto [segment, is_new] = segments.emplace(query.number(0), 0);
    if (is_new) {
      auto found = segment_of(segment->first);
      if (!found.is_ok()) return found.status();
      segment->second = found.value();
    }
    auto location = location_in(query, segment->second);
    if (!location.is_ok()) return location.status();
    locations[place] = location.value();
  }
  return locations;
}

Result<std::uint64_t> Index::segment_of(std::int64_t id) {
  Query query(statements_->segment_by_id);
  auto has_row = query.bind(id).step();
  if (!has_row.is_ok()) return has_row.status();
  return segment_named(has_row.value() ? query.bytes(0) : std::string_view());
}

Result<std::int64_t> Index::known_context_id(const Digest128& digest) {
  const std::string bytes = digest.bytes();
  Query query(statements_->context_by_digest);
  auto has_row = query.bind_blob(bytes).step();
  if (!has_row.is_ok()) return has_row.status();
  return has_row.value() ? query.number(0) : 0;
}

Result<std::vector<Clear>> Index::clears_after(Sequence sequence) {
  std::vector<Clear> clears;
  Query query(statements_->clears_after);
  query.bind(static_cast<std::int64_t>(sequence));
  while (true) {
    auto has_row = query.step();
    if (!has_row.is_ok()) return has_row.status();
    if (!has_row.value()) return clears;
    clears.push_back({{std::string(query.bytes(1)), std::string(query.bytes(2))},
                      static_cast<Sequence>(query.number(0))});
  }
}

Result<bool> Index::is_cleared(const Context& context, std::string_view key, Sequence sequence) {
  MutexLock lock(mutex_);
  auto clears = clears_after(sequence);
  if (!clears.is_ok()) return clears.status();
  return std::any_of(clears.value().begin(), clears.value().end(), [&](const Clear& clear) {
    return is_cleared_by(clear, context, key, sequence);
  });
}

Result<std::int64_t> Index::context_id(const Context& context) {
  auto known = known_context_id(context.digest);
  if (!known.is_ok() || known.value() != 0) return known;
  const std::string digest = context.digest.bytes();
  Query query(statements_->add_context);
  auto has_row =
      query.bind_blob(digest).bind_blob(context.scope).bind_blob(context.description).step();
  if (!has_row.is_ok()) return has_row.status();
  return query.number(0);
}

Result<std::int64_t> Index::segment_id(std::uint64_t segment) {
  const std::string name = segment_name(segment);
  {
    Query query(statements_->segment_by_name);
    auto has_row = query.bind_text(name).step();
    if (!has_row.is_ok()) return has_row.status();
    if (has_row.value()) return query.number(0);
  }
  Query query(statements_->add_segment);
  auto has_row = query.bind_text(name).step();
  if (!has_row.is_ok()) return has_row.status();
  return query.number(0);
}

Status Index::add_live_entries(std::int64_t segment, std::int64_t count) {
  Query query(statements_->add_live_entries);
  return query.bind(count).bind(segment).run();
}

Status Index::raise_last_sequence(Sequence sequence) {
  Query query(statements_->raise_last_sequence);
  return query.bind(static_cast<std::int64_t>(sequence)).run();
}

Result<std::int64_t> Index::commit(const std::vector<NewRow>& rows,
                                   std::vector<std::optional<Sequence>>* taken) {
  if (taken != nullptr) taken->assign(rows.size(), std::nullopt);
  if (rows.empty()) return 0;
  MutexLock lock(mutex_);
  auto transaction = begin_writing();
  if (!transaction.is_ok()) return transaction.status();
  Sequence first = rows.front().location.sequence;
  Sequence last = first;
  LastOffsets last_offsets;
  for (const NewRow& row : rows) {
    first = std::min(first, row.location.sequence);
    last = std::max(last, row.location.sequence);
    note_last(last_offsets, row.location.segment, row.location.offset);
  }
  auto clears = clears_after(first);
  if (!clears.is_ok()) return clears.status();
  // Rows of one batch share contexts and segments.
  std::unordered_map<Digest128, std::int64_t, Digest128Hash> contexts;
  std::map<std::uint64_t, std::int64_t> segments;
  std::int64_t replaced = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const NewRow& row = rows[i];
    const bool is_cleared =
        std::any_of(clears.value().begin(), clears.value().end(), [&](const Clear& clear) {
          return is_cleared_by(clear, *row.context, row.key, row.location.sequence);
        });
    if (is_cleared) continue;
    auto& context = contexts[row.context->digest];
    if (context == 0) {
      auto id = context_id(*row.context);
      if (!id.is_ok()) return id.status();
      context = id.value();
    }
    auto& segment = segments[row.location.segment];
    if (segment == 0) {
      auto id = segment_id(row.location.segment);
      if (!id.is_ok()) return id.status();
      segment = id.value();
    }
    auto instead_of = add_row(row, context, segment);
    if (!instead_of.is_ok()) return instead_of.status();
    if (instead_of.value().value_or(0) != 0 || row.replaces) ++replaced;
    if (taken != nullptr) (*taken)[i] = instead_of.value();
  }
  MODCACHE_RETURN_IF_ERROR(raise_last_offsets(last_offsets));
  MODCACHE_RETURN_IF_ERROR(raise_last_sequence(last));
  MODCACHE_RETURN_IF_ERROR(transaction.value().commit());
  return replaced;
}

// True: it took the place of an older row.
Result<std::optional<Sequence>> Index::add_row(const NewRow& row, std::int64_t context,
                                               std::int64_t segment) {
  const Location& location = row.location;
  const auto offset = static_cast<std::int64_t>(location.offset);
  const auto payload_size = static_cast<std::int64_t>(location.payload_size_bytes);
  const auto sequence = static_cast<std::int64_t>(location.sequence);
  {
    Query query(statements_->add_entry);
    query.bind(context).bind_blob(row.key).bind(segment).bind(offset);
    query.bind(location.header_size_bytes).bind(payload_size).bind(sequence);
    query.bind(location.run_us).bind(row.stored_at_us).bind(row.replaces ? 1 : 0);
    MODCACHE_RETURN_IF_ERROR(query.run());
  }
  if (database_->changes() > 0) {
    MODCACHE_RETURN_IF_ERROR(add_live_entries(segment, 1));
    return std::optional<Sequence>(0);
  }
  std::int64_t old_segment = 0;
  std::int64_t known_sequence = 0;
  {
    Query query(statements_->entry_of_key);
    auto has_row = query.bind(context).bind_blob(row.key).step();
    if (!has_row.is_ok()) return has_row.status();
    if (!has_row.value()) return std::optional<Sequence>();
    old_segment = query.number(0);
    known_sequence = query.number(1);
  }
  if (known_sequence == sequence) return std::optional<Sequence>();
  if (known_sequence > sequence) {
    MODCACHE_RETURN_IF_ERROR(mark_as_replacing(context, row.key));
    return std::optional<Sequence>();
  }
  {
    Query query(statements_->replace_entry);
    query.bind(segment).bind(offset).bind(location.header_size_bytes).bind(payload_size);
    query.bind(sequence).bind(location.run_us).bind(row.stored_at_us);
    MODCACHE_RETURN_IF_ERROR(query.bind(context).bind_blob(row.key).run());
  }
  MODCACHE_RETURN_IF_ERROR(add_live_entries(old_segment, -1));
  MODCACHE_RETURN_IF_ERROR(add_live_entries(segment, 1));
  return std::optional<Sequence>(static_cast<Sequence>(known_sequence));
}

Status Index::mark_as_replacing(std::int64_t context, std::string_view key) {
  Query query(statements_->mark_as_replacing);
  return query.bind(context).bind_blob(key).run();
}

Result<bool> Index::replaces(const Digest128& context, std::string_view key, Sequence sequence) {
  const std::string digest = context.bytes();
  MutexLock lock(mutex_);
  Query query(statements_->replaces);
  query.bind_blob(digest).bind_blob(key).bind(static_cast<std::int64_t>(sequence));
  auto has_row = query.step();
  if (!has_row.is_ok()) return has_row.status();
  if (!has_row.value()) return Status::not_found();
  return query.number(0) != 0;
}

Result<bool> Index::drop(const Digest128& context, std::string_view key, Sequence sequence,
                         std::optional<std::uint64_t> with_tombstone) {
  const std::string digest = context.bytes();
  MutexLock lock(mutex_);
  auto transaction = begin_writing();
  if (!transaction.is_ok()) return transaction.status();
  std::int64_t segment = 0;
  {
    Query query(statements_->remove_entry);
    query.bind_blob(digest).bind_blob(key).bind(static_cast<std::int64_t>(sequence));
    auto has_row = query.step();
    if (!has_row.is_ok()) return has_row.status();
    if (!has_row.value()) return false;
    segment = query.number(0);
    // RETURNING is done only when the statement has run to its end.
    MODCACHE_RETURN_IF_ERROR(query.run());
  }
  MODCACHE_RETURN_IF_ERROR(add_live_entries(segment, -1));
  MODCACHE_RETURN_IF_ERROR(apply_plan({{}, with_tombstone}));
  MODCACHE_RETURN_IF_ERROR(transaction.value().commit());
  return true;
}

Result<std::int64_t> Index::count_entries() {
  MutexLock lock(mutex_);
  return database_->query_number("SELECT coalesce(sum(live_entries), 0) FROM segments");
}

Result<Sequence> Index::last_sequence() {
  MutexLock lock(mutex_);
  auto number = database_->query_number("SELECT value FROM meta WHERE name='last_sequence'");
  if (number.is_not_found()) return Status::corruption("the database has no last sequence");
  if (!number.is_ok()) return number.status();
  // No directory gets that far, and those behind it would be negative to SQLite.
  if (number.value() < 0 || number.value() > kGreatestSequence) {
    return Status::corruption("the database has an impossible last sequence");
  }
  return static_cast<Sequence>(number.value());
}

Result<bool> Index::checkpoint() {
  MutexLock lock(mutex_);
  return database_->checkpoint();
}

}  // namespace modcache::store
