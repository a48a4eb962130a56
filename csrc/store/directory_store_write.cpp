// SPDX-License-Identifier: Apache-2.0
//
// The writing half of DirectoryStore.
#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "base/log.h"
#include "store/directory_store.h"

namespace modcache::store {
namespace {

// With the time that a commit takes it keeps the promise of 100 ms.
constexpr std::chrono::milliseconds kGather{20};
constexpr std::chrono::seconds kIdleCheck{1};
constexpr int kMostAttempts = 5;
// How old the count of bytes on disk may be before it is a reason to refuse an entry.
constexpr std::int64_t kDiskBytesAgeMs = 50;
constexpr std::size_t kMostSharedContexts = 1024;
// What a flush leaves of the log: little beside the entries, and strict puts, which flush each
// time, still empty it only once for many.
constexpr std::uint64_t kWalBytesAtFlush = 128 << 10;
// A flush waits for this process's own writing, which another process delays by at most the
// store's patience.
constexpr std::chrono::minutes kOwnWriting{10};

std::int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::uint64_t record_size(const RowPut& put) {
  RecordHead head;
  head.key_size_bytes = static_cast<std::uint32_t>(put.key.size());
  head.header_size_bytes = static_cast<std::uint32_t>(put.header.size());
  head.payload_size_bytes = put.payload.size_bytes;
  return head.record_size_bytes();
}

Status check_row(const RowPut& put) {
  if (put.key.empty() || put.key.size() > kMaxKeySizeBytes) {
    return Status::invalid_argument("a key has between 1 and " + std::to_string(kMaxKeySizeBytes) +
                                    " bytes, not " + std::to_string(put.key.size()));
  }
  if (put.header.size() > kMaxHeaderSizeBytes) {
    return Status::invalid_argument("a header has at most " + std::to_string(kMaxHeaderSizeBytes) +
                                    " bytes, not " + std::to_string(put.header.size()));
  }
  return Status::ok();
}

// The places of those that can be stored. `refused`: why not the first of the others.
std::vector<std::size_t> storable_rows(const std::vector<RowPut>& puts, Status& refused) {
  std::vector<std::size_t> rows;
  rows.reserve(puts.size());
  for (std::size_t i = 0; i < puts.size(); ++i) {
    Status status = check_row(puts[i]);
    if (status.is_ok()) {
      rows.push_back(i);
    } else if (refused.is_ok()) {
      refused = std::move(status);
    }
  }
  return rows;
}

NewRecord record_of(const QueuedPut& put) {
  NewRecord record;
  record.head.kind = RecordKind::kEntry;
  record.head.sequence = put.sequence;
  record.head.context = put.context->digest;
  record.head.run_us = put.run_us;
  record.head.stored_at_us = put.stored_at_us;
  record.head.payload_size_bytes = put.payload.size_bytes;
  record.context = put.context.get();
  record.key = put.key;
  record.header = *put.header;
  record.payload = put.payload.data;
  return record;
}

NewRow row_of(const QueuedPut& put, const RecordPlace& place) {
  NewRow row;
  row.context = put.context.get();
  row.key = put.key;
  row.location = {
      place.segment,          place.offset, static_cast<std::uint32_t>(put.header->size()),
      put.payload.size_bytes, put.sequence, put.run_us};
  row.stored_at_us = put.stored_at_us;
  return row;
}

}  // namespace

Status DirectoryStore::check_writable() const {
  if (is_read_only()) {
    return Status::io_error("'" + directory_.path() + "' can only be read");
  }
  if (!is_attached()) return Status::io_error("'" + directory_.path() + "' was replaced");
  return Status::ok();
}

// What the budget leaves.
std::uint64_t DirectoryStore::room_bytes(std::uint64_t wanted_bytes) {
  const auto room = [this] {
    const std::uint64_t used = disk_bytes_ + queue_.size_bytes();
    return options_.disk_budget_bytes - std::min(used, options_.disk_budget_bytes);
  };
  const std::uint64_t known = room();
  // Another process may have cleared.
  if (known >= wanted_bytes || now_ms() - disk_bytes_known_ms_ <= kDiskBytesAgeMs) return known;
  refresh_disk_bytes();
  return room();
}

void DirectoryStore::refresh_disk_bytes() {
  auto size_bytes = directory_.size_bytes();
  if (size_bytes.is_ok()) disk_bytes_ = size_bytes.value();
  disk_bytes_known_ms_ = now_ms();
}

std::shared_ptr<const Context> DirectoryStore::shared_context(const Context& context) {
  MutexLock lock(contexts_mutex_);
  const auto known = contexts_.find(context.digest);
  if (known != contexts_.end()) return known->second;
  if (contexts_.size() >= kMostSharedContexts) contexts_.clear();
  return contexts_.emplace(context.digest, std::make_shared<const Context>(context)).first->second;
}

Result<Sequence> DirectoryStore::put(Put put) {
  std::vector<Sequence> sequences;
  MODCACHE_RETURN_IF_ERROR(put_all(
      put.id.context, {{put.id.key, put.header, std::move(put.payload), put.run_us}}, sequences));
  return sequences.front();
}

Status DirectoryStore::put_all(const Context& context, const std::vector<RowPut>& puts,
                               std::vector<Sequence>& sequences) {
  sequences.assign(puts.size(), 0);
  if (puts.empty()) return Status::ok();
  if (context.scope.size() > kMaxKeySizeBytes) {
    return Status::invalid_argument("a scope has at most " + std::to_string(kMaxKeySizeBytes) +
                                    " bytes, not " + std::to_string(context.scope.size()));
  }
  Status refused;
  const std::vector<std::size_t> rows = storable_rows(puts, refused);
  if (rows.empty()) return refused;
  MODCACHE_RETURN_IF_ERROR(check_writable());
  const auto deadline = Clock::now() + std::chrono::milliseconds(options_.patience_ms);
  std::vector<std::shared_ptr<QueuedPut>> fitting = within_budget(puts, rows);
  const Status budget =
      fitting.size() == rows.size()
          ? Status::ok()
          : Status::no_space("'" + directory_.path() + "' has used up its " +
                             std::to_string(options_.disk_budget_bytes) + " bytes");
  if (fitting.empty()) return budget;
  MODCACHE_RETURN_IF_ERROR(number(context, fitting));
  std::size_t pushed = 0;
  auto position = queue_.push_all({fitting.begin(), fitting.end()}, deadline, pushed);
  if (options_.durability == Durability::kStrict) {
    MODCACHE_RETURN_IF_ERROR(position.status());
    MODCACHE_RETURN_IF_ERROR(wait_until_safe(position.value()));
  }
  for (std::size_t i = 0; i < pushed; ++i) sequences[rows[i]] = fitting[i]->sequence;
  MODCACHE_RETURN_IF_ERROR(position.status());
  return budget.is_ok() ? refused : budget;
}

// Of `rows` of `puts` the first ones, for which there is room.
std::vector<std::shared_ptr<QueuedPut>> DirectoryStore::within_budget(
    const std::vector<RowPut>& puts, const std::vector<std::size_t>& rows) {
  std::uint64_t wanted_bytes = 0;
  for (const std::size_t i : rows) wanted_bytes += record_size(puts[i]);
  std::uint64_t room = room_bytes(wanted_bytes);
  std::vector<std::shared_ptr<QueuedPut>> fitting;
  fitting.reserve(rows.size());
  SharedHeader header;
  for (const std::size_t i : rows) {
    const RowPut& put = puts[i];
    const std::uint64_t size_bytes = record_size(put);
    if (size_bytes > room) break;
    room -= size_bytes;
    if (header == nullptr || *header != put.header) header = locations_->intern(put.header);
    auto queued = std::make_shared<QueuedPut>();
    queued->key = put.key;
    queued->header = header;
    queued->payload = put.payload;
    queued->run_us = put.run_us;
    queued->size_bytes = size_bytes;
    fitting.push_back(std::move(queued));
  }
  return fitting;
}

Status DirectoryStore::number(const Context& context,
                              const std::vector<std::shared_ptr<QueuedPut>>& puts) {
  const std::shared_ptr<const Context> shared = shared_context(context);
  const std::int64_t stored_at_us = now_us();
  // In this order: a clear between the two has the smaller sequence and spares these puts.
  const std::uint64_t clears = opened_.control->clears();
  auto first = opened_.control->next_sequences(puts.size());
  if (!first.is_ok()) return first.status();
  Sequence sequence = first.value();
  for (const auto& put : puts) {
    put->context = shared;
    put->stored_at_us = stored_at_us;
    put->clears = clears;
    put->sequence = sequence++;
  }
  return Status::ok();
}

void DirectoryStore::write_until_stopped() {
  int attempts = 0;
  std::uint64_t seen_removals = removals();
  while (true) {
    auto batch = queue_.take(kGather, Clock::now() + kIdleCheck);
    if (!batch.empty()) {
      write(std::move(batch), attempts);
      continue;
    }
    if (queue_.is_stopping()) return;
    check_attached();
    if (removals() != seen_removals) {
      seen_removals = removals();
      readers_.forget_unlinked();
    }
  }
}

void DirectoryStore::write(std::vector<QueuedPutPtr> batch, int& attempts) {
  const Status status = append_and_commit(batch);
  // What was appended is appended again: space is lost, but only when a lock was not to be had.
  const bool is_worth_another = status.code() == StatusCode::kBusy && ++attempts < kMostAttempts &&
                                !queue_.is_stopping() && !queue_.is_waited_for();
  if (is_worth_another) {
    queue_.put_back(std::move(batch));
    return;
  }
  attempts = 0;
  if (status.code() == StatusCode::kCorruption) detach_broken_database();
  refresh_disk_bytes();
  // Before finish(), so that the failure is known when a flush returns.
  if (!status.is_ok() && options_.on_write_error) {
    options_.on_write_error(status, static_cast<std::int64_t>(batch.size()));
  }
  queue_.finish(batch, status);
}

Status DirectoryStore::append_and_commit(const std::vector<QueuedPutPtr>& batch) {
  std::vector<NewRecord> records;
  records.reserve(batch.size());
  for (const QueuedPutPtr& put : batch) records.push_back(record_of(*put));
  MutexLock lock(write_mutex_);
  if (!check_attached()) return Status::io_error("'" + directory_.path() + "' was replaced");
  auto places = segments_.append(records);
  if (!places.is_ok()) return places.status();
  std::vector<NewRow> rows;
  rows.reserve(batch.size());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    rows.push_back(row_of(*batch[i], places.value()[i]));
  }
  auto directory_lock = lock_directory();
  if (!directory_lock.is_ok()) return directory_lock.status();
  auto replaced = opened_.writer->commit(rows);
  if (!replaced.is_ok()) return replaced.status();
  if (replaced.value() > 0) opened_.control->add_removal();
  return Status::ok();
}

// Nobody may commit to a database that is no longer the directory's.
Result<DirectoryLock> DirectoryStore::lock_directory() {
  auto lock = DirectoryLock::take(*opened_.lock_file, options_.patience_ms);
  if (!lock.is_ok()) return lock.status();
  attached_checked_ms_.store(0, std::memory_order_relaxed);
  if (!check_attached()) return Status::io_error("'" + directory_.path() + "' was replaced");
  return lock;
}

Status DirectoryStore::flush() {
  if (is_read_only()) return Status::ok();
  return wait_until_safe(queue_.last_position());
}

// First the segments' bytes, then their names, then the rows that lead to them.
Status DirectoryStore::wait_until_safe(WriteQueue::Position position) {
  const Status written = queue_.wait_for(position, Clock::now() + kOwnWriting);
  MutexLock lock(write_mutex_);
  MODCACHE_RETURN_IF_ERROR(segments_.sync());
  // A commit or checkpoint in progress would move rows between log and database meanwhile.
  auto directory_lock = lock_directory();
  if (!directory_lock.is_ok()) return directory_lock.status();
  fs::FileSystem& file_system = directory_.file_system();
  // Rows are in the log, or in the database, which SQLite synced before it emptied the log.
  auto wal = file_system.open(directory_.wal_path(), fs::OpenMode::kRead);
  if (!wal.is_ok() && !wal.is_not_found()) return wal.status();
  if (wal.is_ok()) MODCACHE_RETURN_IF_ERROR(wal.value()->sync_data());
  MODCACHE_RETURN_IF_ERROR(file_system.sync_directory(directory_.path()));
  checkpoint_if_larger(kWalBytesAtFlush);
  return written;
}

// Its failure loses nothing: the log is only longer than it need be.
void DirectoryStore::checkpoint_if_larger(std::uint64_t wal_bytes) {
  auto info = directory_.file_system().info(directory_.wal_path());
  if (info.is_ok() && info.value().size_bytes > wal_bytes) (void)opened_.writer->checkpoint();
}

Status DirectoryStore::drop(const EntryId& id, Sequence sequence) {
  if (is_read_only()) return Status::ok();
  if (sequence == 0) {
    auto entry = find(id);
    if (entry.status().code() != StatusCode::kCorruption) return Status::ok();
    auto location = opened_.reader->find(id.context.digest, id.key);
    if (!location.is_ok()) return Status::ok();
    sequence = location.value().sequence;
  }
  return as_index_failure(drop_row(id, sequence));
}

Status DirectoryStore::drop_row(const EntryId& id, Sequence sequence) {
  MutexLock lock(write_mutex_);
  auto directory_lock = lock_directory();
  if (!directory_lock.is_ok()) return directory_lock.status();
  auto is_dropped = opened_.writer->drop(id.context.digest, id.key, sequence);
  if (!is_dropped.is_ok()) return is_dropped.status();
  if (is_dropped.value()) opened_.control->add_removal();
  return Status::ok();
}

}  // namespace modcache::store
