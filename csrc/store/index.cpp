// SPDX-License-Identifier: Apache-2.0
#include "store/index.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "base/fork.h"
#include "store/directory.h"
#include "store/schema.h"

namespace modcache::store {
namespace {

constexpr char kWriteSettings[] =
    "PRAGMA journal_mode=WAL;"
    // A commit survives the death of the process without a sync; flush syncs the WAL.
    "PRAGMA synchronous=NORMAL;"
    "PRAGMA journal_size_limit=4194304;"
    "PRAGMA temp_store=MEMORY;";
constexpr char kCreateSettings[] = "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;";

Result<std::uint64_t> segment_named(std::string_view name) {
  const auto segment = parse_segment_name(std::string(name));
  if (!segment) return Status::corruption("the database names an impossible segment");
  return *segment;
}

// Of a row whose second column is the offset, and the others follow in their order.
Location location_in(const Query& query, std::uint64_t segment) {
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
                   Sequence sequence) {
  const ClearFilter& filter = clear.filter;
  return sequence < clear.sequence && (filter.scope.empty() || filter.scope == context.scope) &&
         key.substr(0, filter.key_prefix.size()) == filter.key_prefix;
}

struct Index::Statements {
  Statement find;
  Statement find_in_context;
  Statement segment_by_id;
  Statement clears_after;
  Statement context_by_digest;
  Statement add_context;
  Statement segment_by_name;
  Statement add_segment;
  Statement add_entry;
  Statement entry_of_key;
  Statement replace_entry;
  Statement remove_entry;
  Statement add_live_entries;
  Statement raise_last_sequence;
};

Index::Index() : fork_ticket_(hold_across_fork(mutex_)) {}

Index::~Index() {
  {
    MutexLock lock(mutex_);
    statements_ = nullptr;
    database_ = nullptr;
  }
  stop_holding_across_fork(fork_ticket_);
}

Result<std::unique_ptr<Index>> Index::create(const std::string& path) {
  std::unique_ptr<Index> index(new Index);
  MutexLock lock(index->mutex_);
  const auto mode = path.empty() ? Database::Mode::kMemory : Database::Mode::kCreate;
  auto database = Database::open(path, mode, 0);
  if (!database.is_ok()) return database.status();
  index->database_ = std::move(database).value();
  MODCACHE_RETURN_IF_ERROR(index->database_->execute(kCreateSettings));
  MODCACHE_RETURN_IF_ERROR(create_schema(*index->database_));
  MODCACHE_RETURN_IF_ERROR(index->prepare_statements());
  return index;
}

Result<std::unique_ptr<Index>> Index::open(const std::string& path, Database::Mode mode,
                                           std::int64_t patience_ms) {
  std::unique_ptr<Index> index(new Index);
  MutexLock lock(index->mutex_);
  MODCACHE_RETURN_IF_ERROR(index->connect(path, mode, patience_ms));
  MODCACHE_RETURN_IF_ERROR(check_schema(*index->database_));
  MODCACHE_RETURN_IF_ERROR(index->prepare(mode));
  return index;
}

Result<std::unique_ptr<Index>> Index::open_again(const std::string& path,
                                                 std::int64_t patience_ms) {
  std::unique_ptr<Index> index(new Index);
  MutexLock lock(index->mutex_);
  MODCACHE_RETURN_IF_ERROR(index->connect(path, Database::Mode::kWrite, patience_ms));
  MODCACHE_RETURN_IF_ERROR(index->prepare(Database::Mode::kWrite));
  return index;
}

Status Index::connect(const std::string& path, Database::Mode mode, std::int64_t patience_ms) {
  auto database = Database::open(path, mode, patience_ms);
  if (!database.is_ok()) return database.status();
  database_ = std::move(database).value();
  return Status::ok();
}

Status Index::prepare(Database::Mode mode) {
  if (mode == Database::Mode::kWrite) MODCACHE_RETURN_IF_ERROR(database_->execute(kWriteSettings));
  return prepare_statements();
}

Status Index::prepare_statements() {
  statements_ = std::make_unique<Statements>();
  const std::pair<Statement*, const char*> texts[] = {
      {&statements_->find,
       "SELECT s.name, e.offset, e.header_size, e.payload_size, e.sequence, e.run_us"
       " FROM contexts c JOIN entries e ON e.context_id=c.id JOIN segments s ON s.id=e.segment_id"
       " WHERE c.digest=? AND e.key=?"},
      {&statements_->find_in_context,
       "SELECT segment_id, offset, header_size, payload_size, sequence, run_us FROM entries"
       " WHERE context_id=? AND key=?"},
      {&statements_->segment_by_id, "SELECT name FROM segments WHERE id=?"},
      {&statements_->clears_after,
       "SELECT sequence, scope, key_prefix FROM clears"
       " WHERE sequence>?"},
      {&statements_->context_by_digest, "SELECT id FROM contexts WHERE digest=?"},
      {&statements_->add_context,
       "INSERT INTO contexts(digest, scope, description) VALUES(?,?,?) RETURNING id"},
      {&statements_->segment_by_name, "SELECT id FROM segments WHERE name=?"},
      {&statements_->add_segment,
       "INSERT INTO segments(name, live_entries, tombstones) VALUES(?,0,0) RETURNING id"},
      {&statements_->add_entry,
       "INSERT INTO entries VALUES(?,?,?,?,?,?,?,?,?)"
       " ON CONFLICT DO NOTHING"},
      {&statements_->entry_of_key,
       "SELECT segment_id, sequence FROM entries WHERE context_id=? AND key=?"},
      {&statements_->replace_entry,
       "UPDATE entries SET segment_id=?, offset=?, header_size=?, payload_size=?, sequence=?,"
       " run_us=?, stored_at_us=? WHERE context_id=? AND key=?"},
      {&statements_->remove_entry,
       "DELETE FROM entries WHERE context_id=(SELECT id FROM contexts WHERE digest=?) AND key=?"
       " AND sequence=? RETURNING segment_id"},
      {&statements_->add_live_entries,
       "UPDATE segments SET live_entries=live_entries+? WHERE id=?"},
      {&statements_->raise_last_sequence,
       "UPDATE meta SET value=max(value, ?) WHERE name='last_sequence'"},
  };
  for (const auto& [statement, sql] : texts) {
    auto prepared = database_->prepare(sql);
    if (!prepared.is_ok()) return prepared.status();
    *statement = std::move(prepared).value();
  }
  return Status::ok();
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
    locations[place] = location_in(query, segment->second);
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

Result<std::int64_t> Index::commit(const std::vector<NewRow>& rows) {
  if (rows.empty()) return 0;
  MutexLock lock(mutex_);
  auto transaction = Transaction::begin(*database_);
  if (!transaction.is_ok()) return transaction.status();
  Sequence first = rows.front().location.sequence;
  Sequence last = first;
  for (const NewRow& row : rows) {
    first = std::min(first, row.location.sequence);
    last = std::max(last, row.location.sequence);
  }
  auto clears = clears_after(first);
  if (!clears.is_ok()) return clears.status();
  // Rows of one batch share contexts and segments.
  std::unordered_map<Digest128, std::int64_t, Digest128Hash> contexts;
  std::map<std::uint64_t, std::int64_t> segments;
  std::int64_t replaced = 0;
  for (const NewRow& row : rows) {
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
    auto is_replacement = add_row(row, context, segment);
    if (!is_replacement.is_ok()) return is_replacement.status();
    if (is_replacement.value()) ++replaced;
  }
  MODCACHE_RETURN_IF_ERROR(raise_last_sequence(last));
  MODCACHE_RETURN_IF_ERROR(transaction.value().commit());
  return replaced;
}

// True: it took the place of an older row.
Result<bool> Index::add_row(const NewRow& row, std::int64_t context, std::int64_t segment) {
  const Location& location = row.location;
  const auto offset = static_cast<std::int64_t>(location.offset);
  const auto payload_size = static_cast<std::int64_t>(location.payload_size_bytes);
  const auto sequence = static_cast<std::int64_t>(location.sequence);
  {
    Query query(statements_->add_entry);
    query.bind(context).bind_blob(row.key).bind(segment).bind(offset);
    query.bind(location.header_size_bytes).bind(payload_size).bind(sequence);
    query.bind(location.run_us).bind(row.stored_at_us);
    MODCACHE_RETURN_IF_ERROR(query.run());
  }
  if (database_->changes() > 0) {
    MODCACHE_RETURN_IF_ERROR(add_live_entries(segment, 1));
    return false;
  }
  std::int64_t old_segment = 0;
  {
    Query query(statements_->entry_of_key);
    auto has_row = query.bind(context).bind_blob(row.key).step();
    if (!has_row.is_ok()) return has_row.status();
    if (!has_row.value() || query.number(1) >= sequence) return false;
    old_segment = query.number(0);
  }
  {
    Query query(statements_->replace_entry);
    query.bind(segment).bind(offset).bind(location.header_size_bytes).bind(payload_size);
    query.bind(sequence).bind(location.run_us).bind(row.stored_at_us);
    MODCACHE_RETURN_IF_ERROR(query.bind(context).bind_blob(row.key).run());
  }
  MODCACHE_RETURN_IF_ERROR(add_live_entries(old_segment, -1));
  MODCACHE_RETURN_IF_ERROR(add_live_entries(segment, 1));
  return true;
}

Result<bool> Index::drop(const Digest128& context, std::string_view key, Sequence sequence) {
  const std::string digest = context.bytes();
  MutexLock lock(mutex_);
  auto transaction = Transaction::begin(*database_);
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
  if (!number.is_ok()) return number.status();
  return static_cast<Sequence>(number.value());
}

Status Index::checkpoint() {
  MutexLock lock(mutex_);
  const Status status = database_->execute("PRAGMA wal_checkpoint(TRUNCATE)");
  return status.code() == StatusCode::kBusy ? Status::ok() : status;
}

}  // namespace modcache::store
