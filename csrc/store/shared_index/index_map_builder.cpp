// SPDX-License-Identifier: Apache-2.0
#include "store/shared_index/index_map_builder.h"

#include <utility>

#include "base/fork.h"
#include "store/segment/record.h"
#include "store/write_queue.h"

namespace modcache::store {
namespace {

// Takes a few milliseconds, with the reading.
constexpr std::size_t kRowsAtOnce = 4096;

}  // namespace

IndexMapBuilder::IndexMapBuilder(SharedIndex& index)
    : index_(index), fork_ticket_(hold_across_fork(mutex_)) {}

IndexMapBuilder::~IndexMapBuilder() {
  index_.stop_building();
  {
    MutexLock lock(mutex_);
    query_ = nullptr;
    entries_ = Statement();
    transaction_ = nullptr;
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
  auto transaction = ReadTransaction::begin(*database_);
  if (!transaction.is_ok()) return transaction.status();
  transaction_ = std::make_unique<ReadTransaction>(std::move(transaction).value());
  MODCACHE_RETURN_IF_ERROR(read_names());
  auto count = database_->query_number("SELECT coalesce(sum(live_entries), 0) FROM segments");
  if (!count.is_ok()) return count.status();
  auto last = database_->query_number("SELECT value FROM meta WHERE name='last_sequence'");
  if (!last.is_ok()) return last.status();
  auto entries = database_->prepare(
      "SELECT context_id, key, segment_id, offset, header_size, payload_size, sequence"
      " FROM entries");
  if (!entries.is_ok()) return entries.status();
  entries_ = std::move(entries).value();
  query_ = std::make_unique<Query>(entries_);
  const bool is_started = index_.start_building(static_cast<std::uint64_t>(count.value()),
                                                static_cast<Sequence>(last.value()));
  return is_started ? Status::ok() : Status::not_found();
}

Status IndexMapBuilder::read_names() {
  auto contexts = database_->prepare("SELECT id, digest FROM contexts");
  if (!contexts.is_ok()) return contexts.status();
  for (Query query(contexts.value());;) {
    auto has_row = query.step();
    if (!has_row.is_ok()) return has_row.status();
    if (!has_row.value()) break;
    if (query.bytes(1).size() != 16) return Status::corruption("a context has no digest");
    contexts_[query.number(0)] = Digest128::from_bytes(query.bytes(1));
  }
  auto segments = database_->prepare("SELECT id, name FROM segments");
  if (!segments.is_ok()) return segments.status();
  for (Query query(segments.value());;) {
    auto has_row = query.step();
    if (!has_row.is_ok()) return has_row.status();
    if (!has_row.value()) return Status::ok();
    const auto id = parse_segment_name(std::string(query.bytes(1)));
    if (!id) return Status::corruption("the database names an impossible segment");
    segments_[query.number(0)] = *id;
  }
}

Status IndexMapBuilder::read_rows() {
  if (is_waiting_) return Status::ok();
  rows_.clear();
  MutexLock lock(mutex_);
  while (rows_.size() < kRowsAtOnce && query_ != nullptr) {
    auto has_row = query_->step();
    if (!has_row.is_ok()) return has_row.status();
    if (!has_row.value()) {
      query_ = nullptr;  // another step would begin anew
      break;
    }
    const auto context = contexts_.find(query_->number(0));
    const auto segment = segments_.find(query_->number(2));
    const auto key = query_->bytes(1);
    RecordHead head;
    head.key_size_bytes = static_cast<std::uint32_t>(key.size());
    head.header_size_bytes = static_cast<std::uint32_t>(query_->number(4));
    head.payload_size_bytes = static_cast<std::uint64_t>(query_->number(5));
    const std::int64_t offset = query_->number(3);
    const std::int64_t sequence = query_->number(6);
    // Left out, an entry would be called absent without asking the database, which is broken.
    if (context == contexts_.end() || segment == segments_.end() || sequence <= 0 || offset < 0 ||
        query_->number(4) < 0 || query_->number(5) < 0) {
      return Status::corruption("the database has an impossible row");
    }
    SharedIndex::Change row;
    row.address = address_of(context->second, key);
    row.segment = segment->second;
    row.offset = static_cast<std::uint64_t>(offset);
    row.sequence = static_cast<Sequence>(sequence);
    row.size_bytes = head.record_size_bytes();
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
