// SPDX-License-Identifier: Apache-2.0
//
// The writing half of DirectoryStore.
#include <algorithm>
#include <chrono>
#include <set>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/without_throwing.h"
#include "store/directory_store.h"
#include "store/index/tombstone.h"

namespace modcache::store {
namespace {

// With the time that a commit takes it keeps the promise of 100 ms.
constexpr std::chrono::milliseconds kGather{20};
constexpr std::chrono::milliseconds kIdleCheck{250};
// Between two looks at what waits for its confirmation, and how much of that may wait.
constexpr std::chrono::milliseconds kLook{5};
constexpr std::uint64_t kMostWaitingBytes = 16 << 20;
constexpr int kMostAttempts = 5;
// How long a batch waits for others to leave for it.
constexpr std::chrono::seconds kMakingRoom{1};
// What a flush leaves of the log: little beside the entries, and strict puts, which flush each
// time, still empty it only once for many.
constexpr std::uint64_t kWalBytesAtFlush = 128 << 10;
// A flush waits for this process's own writing, which another process delays by at most the
// store's patience.
constexpr std::chrono::minutes kOwnWriting{10};

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
  record.own_part = put.own_part;
  record.header = *put.header;
  record.payload = put.payload.data;
  return record;
}

NewRow row_of(const QueuedPut& put, const RecordPlace& place) {
  NewRow row;
  row.context = put.context.get();
  row.key = put.key;
  row.location = {
      place.segment,          place.offset, static_cast<std::uint32_t>(put.header_size_bytes()),
      put.payload.size_bytes, put.sequence, put.run_us};
  row.stored_at_us = put.stored_at_us;
  row.replaces = put.replaces;
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

void DirectoryStore::write_until_stopped() {
  int attempts = 0;
  while (true) {
    const auto idle = is_building_index() ? Clock::duration::zero() : Clock::duration(kIdleCheck);
    auto batch = queue_.take(kGather, Clock::now() + idle);
    let_go_of_gone();
    leave_segment_if_asked();
    remove_outdated();
    const bool is_late = settle(batch);
    const bool has_batch = !batch.empty();
    if (has_batch) write(std::move(batch), attempts);
    if (is_late && !has_batch) std::this_thread::sleep_for(kLook);
    if (!queue_.is_stopping()) build_part_of_index();
    if (has_batch) continue;
    if (queue_.is_stopping()) return;
    if (check_attached()) look_for_untold_removals();
  }
}

// Nobody can empty a segment that this process may still write to.
void DirectoryStore::leave_segment_if_asked() {
  const std::uint64_t requests = opened_.control->leave_requests();
  if (std::exchange(seen_leave_requests_, requests) == requests) return;
  MutexLock lock(write_mutex_);
  segments_.leave_segment();
  segments_.release_left();
}

// Leaves in the batch what is for good. What waits for its confirmation goes back to the queue, and
// what is refuted is forgotten. Returns whether something went back.
bool DirectoryStore::settle(std::vector<QueuedPutPtr>& batch) {
  std::vector<QueuedPutPtr> confirmed;
  std::vector<QueuedPutPtr> waiting;
  std::vector<QueuedPutPtr> refuted;
  std::uint64_t waiting_bytes = 0;
  const auto must_settle = [&] {
    return queue_.is_stopping() || queue_.is_waited_for() || waiting_bytes > kMostWaitingBytes;
  };
  for (QueuedPutPtr& put : batch) {
    if (put->confirmation == nullptr || put->confirmation->is_confirmed()) {
      confirmed.push_back(std::move(put));
    } else if (put->evidence == nullptr || put->is_refuted()) {
      refuted.push_back(std::move(put));
    } else if (!must_settle() && !put->evidence->is_due()) {
      waiting_bytes += put->size_bytes;
      waiting.push_back(std::move(put));
    } else {
      const bool is_confirmed = put->confirmation->settle(*put->evidence);
      (is_confirmed ? confirmed : refuted).push_back(std::move(put));
    }
  }
  if (!refuted.empty()) {
    remove_outdated(outdated_by(refuted));
    queue_.finish(refuted, Status::ok());
  }
  batch = std::move(confirmed);
  if (waiting.empty()) return false;
  queue_.hold_back(std::move(waiting), batch);
  return true;
}

void DirectoryStore::write(std::vector<QueuedPutPtr> batch, int& attempts) {
  refuse_beyond_budget(batch);
  queue_.begin_write();
  const Status status = without_throwing([&] { return append_and_commit(batch); });
  // What was appended is appended again: space is lost, but only when a lock was not to be had.
  const bool is_worth_another = status.code() == StatusCode::kBusy && ++attempts < kMostAttempts &&
                                !queue_.is_stopping() && !queue_.is_waited_for();
  if (is_worth_another) {
    queue_.put_back(std::move(batch));
    return;
  }
  attempts = 0;
  if (!status.is_ok()) remove_outdated(outdated_by(batch));
  if (status.code() == StatusCode::kCorruption) detach_broken_database();
  budget_.measure();
  // Before finish(), so that the failure is known when a flush returns.
  if (!status.is_ok() && options_.on_write_error) {
    options_.on_write_error(status, static_cast<std::int64_t>(batch.size()));
  }
  queue_.finish(batch, status);
}

// Takes out of the batch what there is no room for, even after a while.
void DirectoryStore::refuse_beyond_budget(std::vector<QueuedPutPtr>& batch) {
  std::uint64_t size_bytes = 0;
  bool may_evict = false;
  for (const QueuedPutPtr& put : batch) {
    size_bytes += put->size_bytes;
    may_evict = may_evict || put->may_evict;
  }
  budget_.measure();
  if (budget_.fits(size_bytes)) return;
  wait_for_room(size_bytes, may_evict, Clock::now() + kMakingRoom);
  std::vector<QueuedPutPtr> refused;
  while (!batch.empty() && !budget_.fits(size_bytes)) {
    size_bytes -= batch.back()->size_bytes;
    refused.push_back(std::move(batch.back()));
    batch.pop_back();
  }
  if (refused.empty()) return;
  remove_outdated(outdated_by(refused));
  if (options_.on_not_kept) options_.on_not_kept(static_cast<std::int64_t>(refused.size()));
  queue_.finish(refused, Status::ok());
}

Status DirectoryStore::append_and_commit(const std::vector<QueuedPutPtr>& batch) {
  MutexLock lock(write_mutex_);
  // Whoever removes something has this lock, too: nothing of it comes in between.
  const std::vector<QueuedPutPtr> wanted = queue_.without_removed(batch);
  if (wanted.empty()) return Status::ok();
  std::vector<NewRecord> records;
  records.reserve(wanted.size());
  for (const QueuedPutPtr& put : wanted) records.push_back(record_of(*put));
  if (!check_attached()) return Status::io_error("'" + directory_.path() + "' was replaced");
  auto places = segments_.append(records);
  const Status status = places.is_ok() ? commit_rows(wanted, places.value()) : places.status();
  segments_.release_left();
  return status;
}

Status DirectoryStore::commit_rows(const std::vector<QueuedPutPtr>& batch,
                                   const std::vector<RecordPlace>& places) {
  std::vector<NewRow> rows;
  rows.reserve(batch.size());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    rows.push_back(row_of(*batch[i], places[i]));
  }
  auto directory_lock = lock_directory();
  if (!directory_lock.is_ok()) return directory_lock.status();
  std::vector<std::optional<Sequence>> taken;
  opened_.control->set_removal_pending(true);
  index_->begin();
  auto replaced = opened_.writer->commit(rows, &taken);
  if (!replaced.is_ok()) {
    undo_in_index(replaced.status());
    return replaced.status();
  }
  commit_to_index(rows, taken);
  Sequence last = 0;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    last = std::max(last, batch[i]->sequence);
    // Overtaken by a later one, or cleared.
    if (!taken[i]) opened_.control->raise_superseded(batch[i]->sequence);
  }
  opened_.control->raise_committed(last);
  last_committed_ = std::max(last_committed_, last);
  if (replaced.value() > 0) opened_.control->raise_superseded(last - 1);
  // What was never evicted anywhere leaves a row: without one there was nothing to replace.
  const bool may_replace = opened_.control->reclaims() > 0 &&
                           std::any_of(batch.begin(), batch.end(),
                                       [](const QueuedPutPtr& put) { return put->replaces; });
  if (replaced.value() > 0 || may_replace) opened_.control->add_removal();
  opened_.control->set_removal_pending(false);
  checkpoint_if_larger(budget_.most_log_bytes());
  return Status::ok();
}

Result<DirectoryLock> DirectoryStore::lock_directory() {
  return lock_directory(options_.patience_ms);
}

// Nobody may commit to a database that is no longer the directory's.
Result<DirectoryLock> DirectoryStore::lock_directory(std::int64_t patience_ms) {
  auto lock = DirectoryLock::take(*opened_.lock_file, patience_ms);
  if (!lock.is_ok()) return lock.status();
  attached_checked_ms_.store(0, std::memory_order_relaxed);
  if (!check_attached()) return Status::io_error("'" + directory_.path() + "' was replaced");
  if (opened_.control->is_removal_pending()) tell_of_removals();
  return lock;
}

// Somebody died between a commit and telling of it, or does not know what became of it. What was
// removed is not known here, so it may have been anything.
void DirectoryStore::tell_of_removals() {
  auto last = opened_.writer->last_sequence();
  if (last.is_ok()) {
    opened_.control->raise_committed(last.value());
    opened_.control->raise_superseded(last.value());
  }
  index_->discard();  // first: it is what is asked once removals are known
  opened_.control->add_clear();
  opened_.control->add_removal();
  opened_.control->set_removal_pending(false);
}

void DirectoryStore::look_for_untold_removals() {
  if (!opened_.control->is_removal_pending()) return;
  MutexLock lock(write_mutex_);
  // Whoever has the lock is about to tell.
  (void)lock_directory(0);
}

Status DirectoryStore::flush() {
  if (is_read_only()) return Status::ok();
  return wait_until_safe(queue_.last_position());
}

// First the segments' bytes, then their names, then the rows that lead to them.
Status DirectoryStore::wait_until_safe(WriteQueue::Position position) {
  const std::uint64_t failed_syncs = failed_syncs_.load(std::memory_order_relaxed);
  const Status written = queue_.wait_for(position, Clock::now() + kOwnWriting);
  MutexLock lock(write_mutex_);
  Status synced = segments_.sync();
  if (!synced.is_ok()) {
    failed_syncs_.fetch_add(1, std::memory_order_relaxed);
    failed_sync_ = std::move(synced);
    return failed_sync_;
  }
  // The kernel tells of a lost write once: it may have been of what this caller waits for.
  if (failed_syncs_.load(std::memory_order_relaxed) != failed_syncs) return failed_sync_;
  // A commit or checkpoint in progress would move rows between log and database meanwhile.
  auto directory_lock = lock_directory();
  if (!directory_lock.is_ok()) return directory_lock.status();
  MODCACHE_RETURN_IF_ERROR(sync_log());
  opened_.control->raise_confirmed(last_committed_);
  checkpoint_if_larger(std::min(kWalBytesAtFlush, budget_.most_log_bytes()));
  return written;
}

// REQUIRES: the directory's lock is held.
Status DirectoryStore::sync_log() {
  fs::FileSystem& file_system = directory_.file_system();
  // Rows are in the log, or in the database, which SQLite synced before it emptied the log.
  auto wal = file_system.open(directory_.wal_path(), fs::OpenMode::kRead);
  if (!wal.is_ok() && !wal.is_not_found()) return wal.status();
  if (wal.is_ok()) MODCACHE_RETURN_IF_ERROR(wal.value()->sync_data());
  return file_system.sync_directory(directory_.path());
}

// Its failure loses nothing: the log is only longer than it need be. Each attempt syncs, so while
// somebody reads from the log the next one is made when it is twice as long.
void DirectoryStore::checkpoint_if_larger(std::uint64_t wal_bytes) {
  auto info = directory_.file_system().info(directory_.wal_path());
  if (!info.is_ok()) return;
  const std::uint64_t size_bytes = info.value().size_bytes;
  const bool was_in_vain = size_bytes >= log_bytes_in_vain_ && size_bytes < 2 * log_bytes_in_vain_;
  if (size_bytes <= wal_bytes || (was_in_vain && wal_bytes > 0)) return;
  auto is_empty = opened_.writer->checkpoint();
  log_bytes_in_vain_ = is_empty.is_ok() && !is_empty.value() ? size_bytes : 0;
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
  auto replaces = opened_.writer->replaces(id.context.digest, id.key, sequence);
  if (!replaces.is_ok()) return replaces.is_not_found() ? Status::ok() : replaces.status();
  std::optional<std::uint64_t> with_tombstone;
  if (replaces.value() || opened_.control->bears_last_sequence(sequence)) {
    // Else a rebuild would bring back what the entry replaced, or miss the last sequence.
    const Clear clear = clear_of_replaced(id.context, id.key, sequence);
    auto places = segments_.append({tombstone_of(clear)});
    segments_.release_left();
    if (!places.is_ok()) return places.status();
    with_tombstone = places.value().front().segment;
  }
  return drop_in_index(id, sequence, with_tombstone);
}

Status DirectoryStore::drop_in_index(const EntryId& id, Sequence sequence,
                                     std::optional<std::uint64_t> with_tombstone) {
  opened_.control->set_removal_pending(true);
  index_->begin();
  auto is_dropped = opened_.writer->drop(id.context.digest, id.key, sequence, with_tombstone);
  if (!is_dropped.is_ok()) {
    undo_in_index(is_dropped.status());
    return is_dropped.status();
  }
  if (is_dropped.value()) {
    SharedIndex::Change change;
    change.address = address_of(id.context.digest, id.key);
    change.sequence = sequence;
    index_->apply({change});
  }
  index_->commit(0);
  if (is_dropped.value()) opened_.control->add_removal();
  opened_.control->set_removal_pending(false);
  return Status::ok();
}

}  // namespace modcache::store
