// SPDX-License-Identifier: Apache-2.0
#include "store/verify/database_check.h"

#include <utility>

#include "store/entry/clear.h"
#include "store/entry/entry_id.h"
#include "store/index/schema.h"
#include "store/index/wal_peek.h"

namespace modcache::store {
namespace {

constexpr int kMostContradictions = 20;
constexpr char kRowColumns[] =
    " e.context_id, e.key, e.segment_id, e.offset, e.header_size, e.payload_size, e.sequence,"
    " e.run_us";

// Each query must give 0.
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

// Returns how to open a database that may be in use. With a log and its shared memory: like any
// reader. Without a log: by itself. With a log whose shared memory is gone (then nobody has it
// open): with shared memory of the connection's own.
Database::Mode mode_of(const Directory& directory, std::int64_t patience_ms) {
  const LogLook log = look_at_log(directory, patience_ms);
  if (log.is_live) return Database::Mode::kRead;
  return log.is_read ? Database::Mode::kReadAlone : Database::Mode::kImmutable;
}

}  // namespace

bool DatabaseCheck::Row::is_same_place(const Row& other) const {
  return location.is_same_place(other.location) &&
         location.header_size_bytes == other.location.header_size_bytes &&
         location.payload_size_bytes == other.location.payload_size_bytes;
}

Result<std::unique_ptr<DatabaseCheck>> DatabaseCheck::open(const Directory& directory,
                                                           std::int64_t patience_ms) {
  if (directory.file_system().info(directory.database_path()).is_not_found()) {
    return Status::not_found("'" + directory.database_path() + "' is not there");
  }
  const Database::Mode mode = mode_of(directory, patience_ms);
  MODCACHE_ASSIGN_OR_RETURN(
      auto database,
      Database::open(directory.file_system(), directory.database_path(), mode, patience_ms));
  std::unique_ptr<DatabaseCheck> check(new DatabaseCheck(std::move(database)));
  check->sees_others_ = mode == Database::Mode::kRead;
  MODCACHE_RETURN_IF_ERROR(check_schema(*check->database_));
  MODCACHE_RETURN_IF_ERROR(check->prepare());
  return check;
}

Status DatabaseCheck::prepare() {
  const std::string columns = kRowColumns;
  return database_->prepare({
      {&rows_after_, "SELECT" + columns +
                         " FROM entries e WHERE (e.context_id, e.key)>(?,?)"
                         " ORDER BY e.context_id, e.key LIMIT ?"},
      {&row_, "SELECT" + columns + " FROM entries e WHERE e.context_id=? AND e.key=?"},
      {&row_by_digest_, "SELECT" + columns +
                            " FROM contexts c JOIN entries e ON e.context_id=c.id"
                            " WHERE c.digest=? AND e.key=?"},
      {&context_, "SELECT digest, scope, description FROM contexts WHERE id=?"},
      {&segment_, "SELECT name FROM segments WHERE id=?"},
  });
}

Result<std::vector<std::string>> DatabaseCheck::contradictions() {
  std::vector<std::string> found;
  MODCACHE_ASSIGN_OR_RETURN(auto transaction, Transaction::begin_reading(*database_));
  {
    Query query(*database_, "PRAGMA integrity_check(" + std::to_string(kMostContradictions) + ")");
    MODCACHE_RETURN_IF_ERROR(query.each([&] {
      if (query.bytes(0) != "ok") found.emplace_back(query.bytes(0));
      return Status::ok();
    }));
  }
  // When SQLite finds the file broken there is no point in further questions.
  if (!found.empty()) return found;
  for (const Contradiction& contradiction : kContradictions) {
    MODCACHE_ASSIGN_OR_RETURN(auto count, database_->query_number(contradiction.sql));
    if (count != 0) {
      found.push_back(std::string("it has ") + contradiction.text);
    }
  }
  return found;
}

Result<std::vector<DatabaseCheck::SegmentCount>> DatabaseCheck::segment_counts() {
  Query query(*database_,
              "SELECT s.name, s.live_entries, coalesce(n.entries, 0) FROM segments s LEFT JOIN"
              " (SELECT segment_id, count(*) AS entries FROM entries GROUP BY segment_id) n"
              " ON n.segment_id=s.id");
  std::vector<SegmentCount> counts;
  MODCACHE_RETURN_IF_ERROR(query.each([&] {
    const auto segment = parse_segment_name(std::string(query.bytes(0)));
    counts.push_back({segment.value_or(0), query.number(1), query.number(2)});
    return Status::ok();
  }));
  return counts;
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
  Query query(*database_, "SELECT sequence, scope, key_prefix FROM clears");
  std::vector<Clear> clears;
  MODCACHE_RETURN_IF_ERROR(query.each([&] {
    clears.push_back({{std::string(query.bytes(1)), std::string(query.bytes(2))},
                      static_cast<Sequence>(query.number(0))});
    return Status::ok();
  }));
  return clears;
}

Result<std::uint64_t> DatabaseCheck::segment_named(std::int64_t id) {
  const auto known = segments_.find(id);
  if (known != segments_.end()) return known->second;
  Query query(segment_);
  MODCACHE_ASSIGN_OR_RETURN(auto has_row, query.bind(id).step());
  if (!has_row) return std::uint64_t{0};
  const std::uint64_t segment = parse_segment_name(std::string(query.bytes(0))).value_or(0);
  return segments_.emplace(id, segment).first->second;
}

Result<DatabaseCheck::Row> DatabaseCheck::row_in(const Query& query) {
  Row row;
  row.context_id = query.number(0);
  row.key = query.bytes(1);
  MODCACHE_ASSIGN_OR_RETURN(row.context, context_of(row.context_id));
  MODCACHE_ASSIGN_OR_RETURN(row.location.segment, segment_named(query.number(2)));
  row.location.offset = static_cast<std::uint64_t>(query.number(3));
  const std::int64_t header_size = query.number(4);
  // A size that does not fit is refused by everybody who reads it.
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
  MODCACHE_ASSIGN_OR_RETURN(auto transaction, Transaction::begin_reading(*database_));
  Query query(rows_after_);
  query.bind(last.context_id).bind_blob(last.key).bind(static_cast<std::int64_t>(most));
  return rows_of(query);
}

Result<std::optional<DatabaseCheck::Row>> DatabaseCheck::row(std::int64_t context_id,
                                                             std::string_view key) {
  MODCACHE_ASSIGN_OR_RETURN(auto transaction, Transaction::begin_reading(*database_));
  Query query(row_);
  return only_row_of(query.bind(context_id).bind_blob(key));
}

Result<std::optional<DatabaseCheck::Row>> DatabaseCheck::row(const Digest128& context,
                                                             std::string_view key) {
  MODCACHE_ASSIGN_OR_RETURN(auto transaction, Transaction::begin_reading(*database_));
  const std::string digest = context.bytes();
  Query query(row_by_digest_);
  return only_row_of(query.bind_blob(digest).bind_blob(key));
}

Result<std::vector<DatabaseCheck::Row>> DatabaseCheck::rows_of(Query& query) {
  // Once their owners are removed, numbers are used again.
  segments_.clear();
  contexts_.clear();
  std::vector<Row> rows;
  MODCACHE_RETURN_IF_ERROR(query.each([&]() -> Status {
    MODCACHE_ASSIGN_OR_RETURN(auto row, row_in(query));
    rows.push_back(std::move(row));
    return Status::ok();
  }));
  return rows;
}

Result<std::optional<DatabaseCheck::Row>> DatabaseCheck::only_row_of(Query& query) {
  MODCACHE_ASSIGN_OR_RETURN(auto rows, rows_of(query));
  if (rows.empty()) return std::optional<Row>();
  return std::optional<Row>(std::move(rows.front()));
}

Result<std::shared_ptr<const Context>> DatabaseCheck::context_of(std::int64_t id) {
  const auto known = contexts_.find(id);
  if (known != contexts_.end()) return known->second;
  std::shared_ptr<const Context> context;
  Query query(context_);
  MODCACHE_ASSIGN_OR_RETURN(auto has_row, query.bind(id).step());
  if (has_row && query.bytes(0).size() == Digest128::kSizeBytes) {
    context = std::make_shared<const Context>(Context{Digest128::from_bytes(query.bytes(0)),
                                                      std::string(query.bytes(1)),
                                                      std::string(query.bytes(2))});
  }
  return contexts_.emplace(id, std::move(context)).first->second;
}

Result<std::vector<Context>> DatabaseCheck::contexts_in_use() {
  Query query(*database_,
              "SELECT digest, scope, description FROM contexts c WHERE length(digest)=16 AND"
              " EXISTS(SELECT 1 FROM entries WHERE context_id=c.id)");
  std::vector<Context> contexts;
  MODCACHE_RETURN_IF_ERROR(query.each([&] {
    contexts.push_back({Digest128::from_bytes(query.bytes(0)), std::string(query.bytes(1)),
                        std::string(query.bytes(2))});
    return Status::ok();
  }));
  return contexts;
}

}  // namespace modcache::store
