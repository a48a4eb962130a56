// SPDX-License-Identifier: Apache-2.0
#include "store/verify/database_check.h"

#include <utility>

#include "store/index/schema.h"
#include "store/index/wal_peek.h"

namespace modcache::store {
namespace {

constexpr int kMostContradictions = 20;
constexpr std::size_t kDigestBytes = 16;
constexpr char kRowColumns[] =
    " e.context_id, e.key, e.segment_id, e.offset, e.header_size, e.payload_size, e.sequence,"
    " e.run_us";

// Each gives a number that must be 0.
struct Contradiction {
  const char* sql;
  const char* text;
};
constexpr Contradiction kContradictions[] = {
    {"SELECT count(*) FROM entries WHERE context_id NOT IN (SELECT id FROM contexts)",
     "entries of a context that is not there"},
    {"SELECT count(*) FROM entries WHERE segment_id NOT IN (SELECT id FROM segments)",
     "entries in a segment that is not there"},
    {"SELECT count(*) FROM entries WHERE sequence<=0 OR sequence>"
     "(SELECT value FROM meta WHERE name='last_sequence')",
     "entries newer than the last one"},
    {"SELECT count(*) FROM clears WHERE sequence<=0 OR sequence>"
     "(SELECT value FROM meta WHERE name='last_sequence')",
     "clears newer than the last one"},
    {"SELECT count(*) FROM contexts WHERE length(digest)<>16 OR typeof(digest)<>'blob'",
     "contexts without a digest"},
    {"SELECT count(*) FROM segments WHERE length(name)<>16 OR name GLOB '*[^0-9a-f]*'",
     "segments with an impossible name"},
    {"SELECT 1-count(*) FROM meta WHERE name='last_sequence' AND typeof(value)='integer'",
     "no last sequence"},
};

// How a file is opened that may be in use: with its log and the shared memory that goes with it;
// without a log by itself; and with a log whose shared memory is gone (then nobody has it open) by
// a connection that keeps that memory for itself.
Database::Mode mode_of(const Directory& directory, std::int64_t patience_ms) {
  const LogLook log = look_at_log(directory, patience_ms);
  if (log.is_live) return Database::Mode::kRead;
  return log.is_read ? Database::Mode::kReadAlone : Database::Mode::kImmutable;
}

}  // namespace

bool DatabaseCheck::Row::is_same_place(const Row& other) const {
  return location.segment == other.location.segment && location.offset == other.location.offset &&
         location.sequence == other.location.sequence &&
         location.header_size_bytes == other.location.header_size_bytes &&
         location.payload_size_bytes == other.location.payload_size_bytes;
}

Result<std::unique_ptr<DatabaseCheck>> DatabaseCheck::open(const Directory& directory,
                                                           std::int64_t patience_ms) {
  if (directory.file_system().info(directory.database_path()).is_not_found()) {
    return Status::not_found("'" + directory.database_path() + "' is not there");
  }
  const Database::Mode mode = mode_of(directory, patience_ms);
  auto database =
      Database::open(directory.file_system(), directory.database_path(), mode, patience_ms);
  if (!database.is_ok()) return database.status();
  std::unique_ptr<DatabaseCheck> check(new DatabaseCheck(std::move(database).value()));
  check->sees_others_ = mode == Database::Mode::kRead;
  MODCACHE_RETURN_IF_ERROR(check_schema(*check->database_).status());
  MODCACHE_RETURN_IF_ERROR(check->prepare());
  return check;
}

Status DatabaseCheck::prepare() {
  const std::string columns = kRowColumns;
  const std::pair<Statement*, std::string> texts[] = {
      {&rows_after_, "SELECT" + columns +
                         " FROM entries e WHERE (e.context_id, e.key)>(?,?)"
                         " ORDER BY e.context_id, e.key LIMIT ?"},
      {&row_, "SELECT" + columns + " FROM entries e WHERE e.context_id=? AND e.key=?"},
      {&row_by_digest_, "SELECT" + columns +
                            " FROM contexts c JOIN entries e ON e.context_id=c.id"
                            " WHERE c.digest=? AND e.key=?"},
      {&context_, "SELECT digest, scope, description FROM contexts WHERE id=?"},
      {&segment_, "SELECT name FROM segments WHERE id=?"},
  };
  for (const auto& [statement, sql] : texts) {
    auto prepared = database_->prepare(sql);
    if (!prepared.is_ok()) return prepared.status();
    *statement = std::move(prepared).value();
  }
  return Status::ok();
}

Result<std::vector<std::string>> DatabaseCheck::contradictions() {
  std::vector<std::string> found;
  auto transaction = ReadTransaction::begin(*database_);
  if (!transaction.is_ok()) return transaction.status();
  {
    auto statement =
        database_->prepare("PRAGMA integrity_check(" + std::to_string(kMostContradictions) + ")");
    if (!statement.is_ok()) return statement.status();
    Query query(statement.value());
    while (true) {
      auto has_row = query.step();
      if (!has_row.is_ok()) return has_row.status();
      if (!has_row.value()) break;
      if (query.bytes(0) != "ok") found.emplace_back(query.bytes(0));
    }
  }
  // What SQLite finds broken it need not be asked about.
  if (!found.empty()) return found;
  for (const Contradiction& contradiction : kContradictions) {
    auto count = database_->query_number(contradiction.sql);
    if (!count.is_ok()) return count.status();
    if (count.value() != 0) {
      found.push_back(std::string("it has ") + contradiction.text);
    }
  }
  return found;
}

Result<std::vector<DatabaseCheck::SegmentCount>> DatabaseCheck::segment_counts() {
  auto statement = database_->prepare(
      "SELECT s.name, s.live_entries, coalesce(n.entries, 0) FROM segments s LEFT JOIN"
      " (SELECT segment_id, count(*) AS entries FROM entries GROUP BY segment_id) n"
      " ON n.segment_id=s.id");
  if (!statement.is_ok()) return statement.status();
  std::vector<SegmentCount> counts;
  Query query(statement.value());
  while (true) {
    auto has_row = query.step();
    if (!has_row.is_ok()) return has_row.status();
    if (!has_row.value()) return counts;
    const auto segment = parse_segment_name(std::string(query.bytes(0)));
    counts.push_back({segment.value_or(0), query.number(1), query.number(2)});
  }
}

Result<Sequence> DatabaseCheck::last_sequence() {
  auto number = database_->query_number("SELECT value FROM meta WHERE name='last_sequence'");
  if (number.is_not_found()) return Status::corruption("the database has no last sequence");
  if (!number.is_ok()) return number.status();
  return static_cast<Sequence>(number.value());
}

Result<std::int64_t> DatabaseCheck::count_entries() {
  return database_->query_number("SELECT count(*) FROM entries");
}

Result<std::vector<Clear>> DatabaseCheck::clears() {
  auto statement = database_->prepare("SELECT sequence, scope, key_prefix FROM clears");
  if (!statement.is_ok()) return statement.status();
  std::vector<Clear> clears;
  Query query(statement.value());
  while (true) {
    auto has_row = query.step();
    if (!has_row.is_ok()) return has_row.status();
    if (!has_row.value()) return clears;
    clears.push_back({{std::string(query.bytes(1)), std::string(query.bytes(2))},
                      static_cast<Sequence>(query.number(0))});
  }
}

Result<std::uint64_t> DatabaseCheck::segment_named(std::int64_t id) {
  const auto known = segments_.find(id);
  if (known != segments_.end()) return known->second;
  Query query(segment_);
  auto has_row = query.bind(id).step();
  if (!has_row.is_ok()) return has_row.status();
  if (!has_row.value()) return std::uint64_t{0};
  const std::uint64_t segment = parse_segment_name(std::string(query.bytes(0))).value_or(0);
  return segments_.emplace(id, segment).first->second;
}

Result<DatabaseCheck::Row> DatabaseCheck::row_in(const Query& query) {
  Row row;
  row.context_id = query.number(0);
  row.key = query.bytes(1);
  auto context = context_of(row.context_id);
  if (!context.is_ok()) return context.status();
  row.context = std::move(context).value();
  auto segment = segment_named(query.number(2));
  if (!segment.is_ok()) return segment.status();
  row.location.segment = segment.value();
  row.location.offset = static_cast<std::uint64_t>(query.number(3));
  const std::int64_t header_size = query.number(4);
  // One that does not fit is refused by all who read it.
  row.location.header_size_bytes = header_size < 0 || header_size > UINT32_MAX
                                       ? UINT32_MAX
                                       : static_cast<std::uint32_t>(header_size);
  row.location.payload_size_bytes = static_cast<std::uint64_t>(query.number(5));
  row.location.sequence = static_cast<Sequence>(query.number(6));
  row.location.run_us = query.number(7);
  return row;
}

Result<std::vector<DatabaseCheck::Row>> DatabaseCheck::rows_after(const Row& last,
                                                                  std::size_t most) {
  auto transaction = ReadTransaction::begin(*database_);
  if (!transaction.is_ok()) return transaction.status();
  forget();
  std::vector<Row> rows;
  Query query(rows_after_);
  query.bind(last.context_id).bind_blob(last.key).bind(static_cast<std::int64_t>(most));
  while (true) {
    auto has_row = query.step();
    if (!has_row.is_ok()) return has_row.status();
    if (!has_row.value()) return rows;
    auto row = row_in(query);
    if (!row.is_ok()) return row.status();
    rows.push_back(std::move(row).value());
  }
}

Result<std::optional<DatabaseCheck::Row>> DatabaseCheck::row(std::int64_t context_id,
                                                             std::string_view key) {
  auto transaction = ReadTransaction::begin(*database_);
  if (!transaction.is_ok()) return transaction.status();
  forget();
  Query query(row_);
  auto has_row = query.bind(context_id).bind_blob(key).step();
  if (!has_row.is_ok()) return has_row.status();
  if (!has_row.value()) return std::optional<Row>();
  auto row = row_in(query);
  if (!row.is_ok()) return row.status();
  return std::optional<Row>(std::move(row).value());
}

Result<std::optional<DatabaseCheck::Row>> DatabaseCheck::row(const Digest128& context,
                                                             std::string_view key) {
  auto transaction = ReadTransaction::begin(*database_);
  if (!transaction.is_ok()) return transaction.status();
  forget();
  const std::string digest = context.bytes();
  Query query(row_by_digest_);
  auto has_row = query.bind_blob(digest).bind_blob(key).step();
  if (!has_row.is_ok()) return has_row.status();
  if (!has_row.value()) return std::optional<Row>();
  auto row = row_in(query);
  if (!row.is_ok()) return row.status();
  return std::optional<Row>(std::move(row).value());
}

Result<std::shared_ptr<const Context>> DatabaseCheck::context_of(std::int64_t id) {
  const auto known = contexts_.find(id);
  if (known != contexts_.end()) return known->second;
  std::shared_ptr<const Context> context;
  Query query(context_);
  auto has_row = query.bind(id).step();
  if (!has_row.is_ok()) return has_row.status();
  if (has_row.value() && query.bytes(0).size() == kDigestBytes) {
    context = std::make_shared<const Context>(Context{Digest128::from_bytes(query.bytes(0)),
                                                      std::string(query.bytes(1)),
                                                      std::string(query.bytes(2))});
  }
  return contexts_.emplace(id, std::move(context)).first->second;
}

Result<std::vector<Context>> DatabaseCheck::contexts_in_use() {
  auto statement = database_->prepare(
      "SELECT digest, scope, description FROM contexts c WHERE length(digest)=16 AND"
      " EXISTS(SELECT 1 FROM entries WHERE context_id=c.id)");
  if (!statement.is_ok()) return statement.status();
  std::vector<Context> contexts;
  Query query(statement.value());
  while (true) {
    auto has_row = query.step();
    if (!has_row.is_ok()) return has_row.status();
    if (!has_row.value()) return contexts;
    contexts.push_back({Digest128::from_bytes(query.bytes(0)), std::string(query.bytes(1)),
                        std::string(query.bytes(2))});
  }
}

void DatabaseCheck::forget() {
  segments_.clear();
  contexts_.clear();
}

}  // namespace modcache::store
