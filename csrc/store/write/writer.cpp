// SPDX-License-Identifier: Apache-2.0
#include "store/write/writer.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "base/without_throwing.h"
#include "store/entry/entry_id.h"
#include "store/index/index.h"
#include "store/segment/record.h"

namespace modcache::store {
namespace {

// Together with the time of a commit this keeps the promise of 100 ms.
constexpr std::chrono::milliseconds kGather{20};
constexpr std::chrono::milliseconds kIdleCheck{250};
constexpr int kMostAttempts = 5;
// A batch waits this long for others to leave for it.
constexpr std::chrono::seconds kMakingRoom{1};
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
  row.address = put.address;
  row.location = {
      place.segment,          place.offset, static_cast<std::uint32_t>(put.header_size_bytes()),
      put.payload.size_bytes, put.sequence, put.run_us};
  row.stored_at_us = put.stored_at_us;
  row.replaces = put.replaces;
  row.begun_at = put.begun_at;
  return row;
}

}  // namespace

Writer::~Writer() {
  queue_.stop();
  if (thread_.joinable()) thread_.join();
}

void Writer::start() {
  seen_leave_requests_ = attached_.control().leave_requests();
  thread_ = std::thread([this] { write_until_stopped(); });
}

void Writer::write_until_stopped() {
  while (true) {
    const auto idle = mirror_.is_building() ? Clock::duration::zero() : Clock::duration(kIdleCheck);
    auto batch = queue_.take(kGather, Clock::now() + idle);
    attached_.forget_retired();
    leave_segment_if_asked();
    remover_.remove_noted();
    const bool has_batch = !batch.empty();
    if (has_batch) write(std::move(batch));
    if (!queue_.is_stopping()) mirror_.build_part();
    if (has_batch) continue;
    if (queue_.is_stopping()) return;
    if (attached_.check_attached()) committer_.look_for_untold_removals();
  }
}

// Nobody can empty a segment as long as this process may write to it.
void Writer::leave_segment_if_asked() {
  const std::uint64_t requests = attached_.control().leave_requests();
  if (std::exchange(seen_leave_requests_, requests) != requests) committer_.leave_segment();
}

void Writer::write(std::vector<QueuedPutPtr> batch) {
  refuse_beyond_budget(batch);
  queue_.begin_write();
  const Status status = without_throwing([&] { return append_and_commit(batch); });
  // The next attempt appends all of it again, which loses space, but only when a lock was not to be
  // had.
  const bool is_worth_another = status.code() == StatusCode::kBusy && ++attempts_ < kMostAttempts &&
                                !queue_.is_stopping() && !queue_.is_waited_for();
  if (is_worth_another) {
    queue_.put_back(std::move(batch));
    return;
  }
  attempts_ = 0;
  if (!status.is_ok()) remover_.remove(batch);
  if (status.code() == StatusCode::kCorruption) committer_.detach_broken_database();
  budget_.measure();
  // Before finish(), so that the failure is known when a flush returns.
  const auto& on_write_error = attached_.options().on_write_error;
  if (!status.is_ok() && on_write_error) {
    on_write_error(status, static_cast<std::int64_t>(batch.size()));
  }
  queue_.finish(batch, status);
}

// Takes the puts out of the batch for which there is no room, even after a while.
void Writer::refuse_beyond_budget(std::vector<QueuedPutPtr>& batch) {
  std::uint64_t size_bytes = 0;
  bool may_evict = false;
  for (const QueuedPutPtr& put : batch) {
    size_bytes += put->size_bytes;
    may_evict = may_evict || put->may_evict;
  }
  budget_.measure();
  if (budget_.fits(size_bytes)) return;
  requests_.wait(size_bytes, may_evict, Clock::now() + kMakingRoom);
  std::vector<QueuedPutPtr> refused;
  while (!batch.empty() && !budget_.fits(size_bytes)) {
    size_bytes -= batch.back()->size_bytes;
    refused.push_back(std::move(batch.back()));
    batch.pop_back();
  }
  if (refused.empty()) return;
  remover_.remove(refused);
  const auto& on_not_kept = attached_.options().on_not_kept;
  if (on_not_kept) on_not_kept(static_cast<std::int64_t>(refused.size()));
  queue_.finish(refused, Status::ok());
}

// Returns whether a clear came between the beginning of the put's call and the put. The record of
// such a put has a greater sequence than the clear, so a rebuilt index would have it again.
bool Writer::was_cleared(const QueuedPut& put) {
  ControlPage& control = attached_.control();
  if (put.begun_at == put.sequence || put.clears == control.clears()) return false;
  const auto is_cleared = attached_.writer().is_cleared(*put.context, put.key, put.begun_at);
  if (is_cleared.is_ok() && !is_cleared.value()) return false;
  control.raise_superseded(put.sequence);
  return true;
}

Status Writer::append_and_commit(const std::vector<QueuedPutPtr>& batch) {
  MutexLock lock(committer_.mutex());
  // Removals hold this lock too, so none comes in between.
  std::vector<QueuedPutPtr> wanted = queue_.without_removed(batch);
  std::erase_if(wanted, [this](const QueuedPutPtr& put) { return was_cleared(*put); });
  if (wanted.empty()) return Status::ok();
  std::vector<NewRecord> records;
  records.reserve(wanted.size());
  for (const QueuedPutPtr& put : wanted) records.push_back(record_of(*put));
  if (!attached_.check_attached()) {
    return Status::io_error("'" + attached_.directory().path() + "' was replaced");
  }
  auto places = committer_.segments().append(records);
  const Status status = places.is_ok() ? commit_rows(wanted, places.value()) : places.status();
  committer_.segments().release_left();
  return status;
}

Status Writer::commit_rows(const std::vector<QueuedPutPtr>& batch,
                           const std::vector<RecordPlace>& places) {
  MODCACHE_ASSIGN_OR_RETURN(auto directory_lock, committer_.lock_directory());
  std::vector<NewRow> rows;
  std::vector<const QueuedPut*> puts;
  rows.reserve(batch.size());
  puts.reserve(batch.size());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    // A clear by another process may have ended since this was asked without the lock.
    if (was_cleared(*batch[i])) continue;
    rows.push_back(row_of(*batch[i], places[i]));
    puts.push_back(batch[i].get());
  }
  if (puts.empty()) return Status::ok();
  std::vector<std::optional<Sequence>> taken;
  committer_.begin_removal();
  auto replaced = attached_.writer().commit(rows, &taken);
  if (!replaced.is_ok()) {
    committer_.undo(replaced.status());
    return replaced.status();
  }
  mirror_.commit(rows, taken);
  Sequence last = 0;
  for (std::size_t i = 0; i < puts.size(); ++i) {
    last = std::max(last, puts[i]->sequence);
    // It was overtaken by a later one, or cleared.
    if (!taken[i]) attached_.control().raise_superseded(puts[i]->sequence);
  }
  committer_.note_committed(last);
  if (replaced.value() > 0) attached_.control().raise_superseded(last - 1);
  // An entry that was never evicted has a row: where nothing was evicted, no row means that there
  // was nothing to replace.
  const bool may_replace =
      attached_.control().reclaims() > 0 &&
      std::any_of(puts.begin(), puts.end(), [](const QueuedPut* put) { return put->replaces; });
  if (replaced.value() > 0 || may_replace) attached_.control().add_removal();
  attached_.control().set_removal_pending(false);
  committer_.keep_log_short();
  return Status::ok();
}

Status Writer::wait_until_safe(WriteQueue::Position position) {
  const std::uint64_t failed_syncs = committer_.failed_syncs();
  const Status written = queue_.wait_for(position, Clock::now() + kOwnWriting);
  MODCACHE_RETURN_IF_ERROR(committer_.make_safe(failed_syncs));
  return written;
}

}  // namespace modcache::store
