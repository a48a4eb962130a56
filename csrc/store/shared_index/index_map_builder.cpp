// SPDX-License-Identifier: Apache-2.0
#include "store/shared_index/index_map_builder.h"

#include <algorithm>
#include <utility>

#include "base/fork.h"
#include "store/segment/record.h"
#include "store/write_queue.h"

namespace modcache::store {
namespace {

// Takes a few milliseconds, with the reading.
constexpr std::int64_t kRowsAtOnce = 4096;

// kCorruption: left out, an entry would be called absent without asking the
// database, which is broken.
Result<SharedIndex::Change> row_of(const Query& query) {
  const std::string_view digest = query.bytes(2);
  const auto segment = parse_segment_name(std::string(query.bytes(3)));
  if (digest.size() != 16 || !segment || query.number(4) < 0 || query.number(5) < 0 ||
      query.number(6) < 0 || query.number(7) <= 0) {
    return Status::corruption("the database has an impossible row");
  }
  const std::string_view key = query.bytes(1);
  RecordHead head;
  head.key_size_bytes = static_cast<std::uint32_t>(key.size());
  head.header_size_bytes = static_cast<std::uint32_t>(query.number(5));
  head.payload_size_bytes = static_cast<std::uint64_t>(query.number(6));
  SharedIndex::Change row;
  row.address = address_of(Digest128::from_bytes(digest), key);
  row.segment = *segment;
  row.offset = static_cast<std::uint64_t>(query.number(4));
  row.sequence = static_cast<Sequence>(query.number(7));
  row.size_bytes = head.record_size_bytes();
  return row;
}

// A row takes more than this in the database or its log.
constexpr std::uint64_t kLeastRowBytes = 16;

// The counts of the database may be damaged, and a file is made for so many: no more of them than
// it has room for.
Result<std::uint64_t> expected_entries(const Directory& directory, Database& database) {
  auto count = database.query_number("SELECT coalesce(sum(live_entries), 0) FROM segments");
  if (!count.is_ok()) return count.status();
  std::uint64_t size_bytes = 0;
  for (const std::string& path : {directory.database_path(), directory.wal_path()}) {
    auto info = directory.file_system().name_info(path);
    if (info.is_ok()) size_bytes += info.value().size_bytes;
  }
  return std::min(static_cast<std::uint64_t>(std::max<std::int64_t>(count.value(), 0)),
                  size_bytes / kLeastRowBytes);
}

}  // namespace

IndexMapBuilder::IndexMapBuilder(SharedIndex& index)
    : index_(index), fork_ticket_(hold_across_fork(mutex_)) {}

IndexMapBuilder::~IndexMapBuilder() {
  index_.stop_building();
  {
    MutexLock lock(mutex_);
    entries_ = Statement();
    database_ = nullptr;
  }
  stop_holding_across_fork(fork_ticket_);
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
  auto database = Database::open(directory.file_system(), directory.database_path(),
                                 Database::Mode::kWrite, patience_ms);
  if (!database.is_ok()) return database.status();
  database_ = std::move(database).value();
  auto count = expected_entries(directory, *database_);
  if (!count.is_ok()) return count.status();
  auto last = database_->query_number("SELECT value FROM meta WHERE name='last_sequence'");
  if (!last.is_ok()) return last.status();
  auto entries = database_->prepare(
      "SELECT e.context_id, e.key, c.digest, s.name, e.offset, e.header_size, e.payload_size,"
      " e.sequence FROM entries e LEFT JOIN contexts c ON c.id=e.context_id"
      " LEFT JOIN segments s ON s.id=e.segment_id WHERE (e.context_id, e.key)>(?,?)"
      " ORDER BY e.context_id, e.key LIMIT ?");
  if (!entries.is_ok()) return entries.status();
  entries_ = std::move(entries).value();
  const bool is_started = index_.start_building(count.value(), static_cast<Sequence>(last.value()));
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
    auto has_row = query.step();
    if (!has_row.is_ok()) return has_row.status();
    if (!has_row.value()) break;
    last_context_ = query.number(0);
    last_key_ = query.bytes(1);
    auto row = row_of(query);
    if (!row.is_ok()) return row.status();
    rows_.push_back(row.value());
  }
  is_waiting_ = true;
  return Status::ok();
}

bool IndexMapBuilder::add_rows() {
  is_waiting_ = false;
  return rows_.empty() ? index_.finish_building() : index_.add_rows(rows_);
}

}  // namespace modcache::store
