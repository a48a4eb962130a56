// SPDX-License-Identifier: Apache-2.0
#include "store/shared_index/index_map_builder.h"

#include <algorithm>
#include <utility>

#include "base/fork.h"
#include "store/entry/entry_id.h"
#include "store/segment/record.h"

namespace modcache::store {
namespace {

// Handling this many rows takes a few milliseconds, including reading them.
constexpr std::int64_t kRowsAtOnce = 4096;

// Returns kCorruption for an impossible row: if it were left out, its entry would be called absent
// without asking the database.
Result<SharedIndex::Change> row_of(const Query& query) {
  const std::string_view digest = query.bytes(2);
  const auto segment = parse_segment_name(std::string(query.bytes(3)));
  if (digest.size() != Digest128::kSizeBytes || !segment || query.number(4) < 0 ||
      query.number(5) < 0 || query.number(6) < 0 || query.number(7) <= 0) {
    return Status::corruption("the database has an impossible row");
  }
  const std::string_view key = query.bytes(1);
  SharedIndex::Change row;
  row.address = address_of(Digest128::from_bytes(digest), key);
  row.segment = *segment;
  row.offset = static_cast<std::uint64_t>(query.number(4));
  row.sequence = static_cast<Sequence>(query.number(7));
  row.size_bytes = record_size_bytes(key.size(), static_cast<std::uint32_t>(query.number(5)),
                                     static_cast<std::uint64_t>(query.number(6)));
  return row;
}

// The least that a row takes in the database or its log.
constexpr std::uint64_t kLeastRowBytes = 16;

// Returns the number of entries to make room for. The database's counts may be damaged, so they are
// limited to what its files have room for.
Result<std::uint64_t> expected_entries(const Directory& directory, Database& database) {
  MODCACHE_ASSIGN_OR_RETURN(
      auto count, database.query_number("SELECT coalesce(sum(live_entries), 0) FROM segments"));
  std::uint64_t size_bytes = 0;
  for (const std::string& path : {directory.database_path(), directory.wal_path()}) {
    auto info = directory.file_system().name_info(path);
    if (info.is_ok()) size_bytes += info.value().size_bytes;
  }
  return std::min(static_cast<std::uint64_t>(std::max<std::int64_t>(count, 0)),
                  size_bytes / kLeastRowBytes);
}

}  // namespace

IndexMapBuilder::IndexMapBuilder(SharedIndex& index)
    : index_(index), fork_registration_(hold_across_fork(mutex_)) {}

IndexMapBuilder::~IndexMapBuilder() {
  index_.stop_building();
  {
    MutexLock lock(mutex_);
    entries_ = Statement();
    database_ = nullptr;
  }
  stop_holding_across_fork(fork_registration_);
}

Result<std::unique_ptr<IndexMapBuilder>> IndexMapBuilder::start(const Directory& directory,
                                                                SharedIndex& index,
                                                                std::int64_t patience_ms) {
  if (!index.needs_building()) return Status::not_found();
  std::unique_ptr<IndexMapBuilder> builder(new IndexMapBuilder(index));
  MODCACHE_RETURN_IF_ERROR(builder->connect(directory, patience_ms));
  return builder;
}

Status IndexMapBuilder::connect(const Directory& directory, std::int64_t patience_ms) {
  MutexLock lock(mutex_);
  MODCACHE_ASSIGN_OR_RETURN(database_,
                            Database::open(directory.file_system(), directory.database_path(),
                                           Database::Mode::kWrite, patience_ms));
  MODCACHE_ASSIGN_OR_RETURN(auto count, expected_entries(directory, *database_));
  MODCACHE_ASSIGN_OR_RETURN(
      auto last, database_->query_number("SELECT value FROM meta WHERE name='last_sequence'"));
  MODCACHE_ASSIGN_OR_RETURN(
      entries_,
      database_->prepare(
          "SELECT e.context_id, e.key, c.digest, s.name, e.offset, e.header_size, e.payload_size,"
          " e.sequence FROM entries e LEFT JOIN contexts c ON c.id=e.context_id"
          " LEFT JOIN segments s ON s.id=e.segment_id WHERE (e.context_id, e.key)>(?,?)"
          " ORDER BY e.context_id, e.key LIMIT ?"));
  const bool is_started = index_.start_building(count, static_cast<Sequence>(last));
  return is_started ? Status::ok() : Status::not_found();
}

Status IndexMapBuilder::read_rows() {
  if (is_waiting_) return Status::ok();
  rows_.clear();
  MutexLock lock(mutex_);
  const std::string after = last_key_;
  Query query(entries_);
  query.bind(last_context_).bind_blob(after).bind(kRowsAtOnce);
  while (true) {
    MODCACHE_ASSIGN_OR_RETURN(auto has_row, query.step());
    if (!has_row) break;
    last_context_ = query.number(0);
    last_key_ = query.bytes(1);
    MODCACHE_ASSIGN_OR_RETURN(auto row, row_of(query));
    rows_.push_back(row);
  }
  is_waiting_ = true;
  return Status::ok();
}

bool IndexMapBuilder::add_rows() {
  is_waiting_ = false;
  return rows_.empty() ? index_.finish_building() : index_.add_rows(rows_);
}

}  // namespace modcache::store
