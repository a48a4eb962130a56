// SPDX-License-Identifier: Apache-2.0
#include "store/queue/write_queue.h"

#include <algorithm>
#include <utility>

#include "store/entry/clear.h"
#include "store/entry/entry_id.h"

namespace modcache::store {
namespace {

constexpr std::uint64_t kFirstPromptBytes = 4 << 20;
// The time of a smaller batch says more about the commit than about the disk.
constexpr std::uint64_t kTellingBytes = 1 << 20;

}  // namespace

WriteQueue::WriteQueue(std::uint64_t limit_bytes, std::uint64_t batch_bytes)
    : limit_bytes_(limit_bytes), batch_bytes_(std::min(batch_bytes, kBatchBytes)) {
  // Any disk writes this much in time; the first batches will tell more.
  prompt_bytes_ = std::min(limit_bytes_, kFirstPromptBytes);
}

bool WriteQueue::wait_for_room(std::uint64_t size_bytes, Clock::time_point prompt_until,
                               Clock::time_point deadline) {
  while (size_bytes_ > 0 && size_bytes_ + size_bytes > prompt_bytes_ &&
         changed_.wait_until(mutex_, prompt_until)) {
  }
  while (size_bytes_ > 0 && size_bytes_ + size_bytes > limit_bytes_) {
    if (!changed_.wait_until(mutex_, deadline) && size_bytes_ > 0 &&
        size_bytes_ + size_bytes > limit_bytes_) {
      return false;
    }
  }
  return true;
}

void WriteQueue::push_locked(QueuedPutPtr put) {
  const std::uint64_t size_bytes = put->size_bytes;
  QueuedPutPtr& latest = latest_[put->address];
  has_any_.store(true, std::memory_order_release);
  // Whoever took a later number may have come here first.
  if (latest == nullptr || latest->sequence < put->sequence) latest = put;
  const bool must_wake = waiting_.empty() || size_bytes_ + size_bytes >= kEnoughBytes;
  put->position_ = ++pushed_;
  finished_behind_.push_back(false);
  waiting_.push_back(std::move(put));
  size_bytes_ += size_bytes;
  if (must_wake) changed_.notify_all();
}

Result<WriteQueue::Position> WriteQueue::push(QueuedPutPtr put, Clock::time_point deadline) {
  std::size_t pushed = 0;
  return push_all({std::move(put)}, deadline, pushed);
}

Result<WriteQueue::Position> WriteQueue::push_all(const std::vector<QueuedPutPtr>& puts,
                                                  Clock::time_point deadline, std::size_t& pushed) {
  const auto prompt_until = std::min(deadline, Clock::now() + 2 * kMostAge);
  MutexLock lock(mutex_);
  for (pushed = 0; pushed < puts.size(); ++pushed) {
    if (!wait_for_room(puts[pushed]->size_bytes, prompt_until, deadline)) {
      return Status::busy("the queue of entries to write stayed full");
    }
    push_locked(puts[pushed]);
  }
  return pushed_;
}

std::vector<QueuedPutPtr> WriteQueue::find_all(const EntryIds& ids) {
  if (!has_any_.load(std::memory_order_acquire)) return {};
  std::vector<QueuedPutPtr> found(ids.size());
  MutexLock lock(mutex_);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto entry = latest_.find(ids.addresses[i]);
    if (entry == latest_.end()) continue;
    const QueuedPutPtr& put = entry->second;
    if (put->context->digest == ids.context.digest && put->key == ids.keys[i]) found[i] = put;
  }
  return found;
}

void WriteQueue::forget(const QueuedPutPtr& put) {
  const auto entry = latest_.find(put->address);
  if (entry != latest_.end() && entry->second == put) latest_.erase(entry);
  has_any_.store(!latest_.empty(), std::memory_order_release);
  size_bytes_ -= put->size_bytes;
}

void WriteQueue::mark_finished(const QueuedPut& put) {
  finished_behind_[put.position_ - finished_ - 1] = true;
  while (!finished_behind_.empty() && finished_behind_.front()) {
    finished_behind_.pop_front();
    ++finished_;
  }
}

std::vector<QueuedPutPtr> WriteQueue::remove(const Clear& clear) {
  MutexLock lock(mutex_);
  return remove_covered([&clear](const QueuedPut& put) {
    return is_cleared_by(clear, *put.context, put.key, put.begun_at, put.stored_at_us);
  });
}

std::size_t WriteQueue::remove(
    const std::unordered_map<Digest128, Sequence, Digest128Hash>& sequences) {
  MutexLock lock(mutex_);
  const auto is_covered = [&](const QueuedPut& put) {
    const auto found = sequences.find(put.address);
    return found != sequences.end() && found->second == put.sequence;
  };
  return remove_covered(is_covered).size();
}

std::vector<QueuedPutPtr> WriteQueue::remove_covered(
    const std::function<bool(const QueuedPut&)>& is_covered) {
  std::vector<QueuedPutPtr> removed;
  for (auto entry = latest_.begin(); entry != latest_.end();) {
    if (is_covered(*entry->second)) {
      removed.push_back(std::move(entry->second));
      entry = latest_.erase(entry);
    } else {
      ++entry;
    }
  }
  std::deque<QueuedPutPtr> kept;
  for (QueuedPutPtr& put : waiting_) {
    if (is_covered(*put)) {
      size_bytes_ -= put->size_bytes;
      mark_finished(*put);
    } else {
      kept.push_back(std::move(put));
    }
  }
  for (const QueuedPutPtr& put : taken_) put->is_removed_ = put->is_removed_ || is_covered(*put);
  waiting_ = std::move(kept);
  has_any_.store(!latest_.empty(), std::memory_order_release);
  changed_.notify_all();
  return removed;
}

std::uint64_t WriteQueue::size_bytes() {
  MutexLock lock(mutex_);
  return size_bytes_;
}

WriteQueue::Position WriteQueue::last_position() {
  MutexLock lock(mutex_);
  return pushed_;
}

bool WriteQueue::is_waited_for() {
  MutexLock lock(mutex_);
  return wanted_ > finished_;
}

int WriteQueue::waiters() {
  MutexLock lock(mutex_);
  return waiters_;
}

Status WriteQueue::wait_for(Position position, Clock::time_point deadline) {
  MutexLock lock(mutex_);
  wanted_ = std::max(wanted_, position);
  changed_.notify_all();
  ++waiters_;
  while (finished_ < position && changed_.wait_until(mutex_, deadline)) {
  }
  --waiters_;
  if (finished_ < position) return Status::busy("entries are still being written");
  if (unreported_.is_ok() || unreported_from_ > position) return Status::ok();
  // Others who wait may have lost an entry by it, too.
  return waiters_ > 0 ? unreported_ : std::exchange(unreported_, Status::ok());
}

bool WriteQueue::must_write_now() const {
  return is_stopping_ || wanted_ > finished_ ||
         size_bytes_ >= std::min(kEnoughBytes, std::max(prompt_bytes_ / 4, kTellingBytes));
}

void WriteQueue::begin_write() {
  MutexLock lock(mutex_);
  write_began_ = Clock::now();
}

void WriteQueue::note_pace(const std::vector<QueuedPutPtr>& batch) {
  if (!write_began_.has_value()) return;
  const auto took = std::chrono::duration<double>(Clock::now() - *write_began_);
  write_began_.reset();
  std::uint64_t size_bytes = 0;
  for (const QueuedPutPtr& put : batch) size_bytes += put->size_bytes;
  if (size_bytes < kTellingBytes) return;
  const double within_most_age = static_cast<double>(size_bytes) *
                                 std::chrono::duration<double>(kMostAge).count() /
                                 std::max(took.count(), 1e-6);
  const auto now =
      static_cast<std::uint64_t>(std::min(within_most_age, static_cast<double>(limit_bytes_)));
  // Slower at once, faster by and by.
  const std::uint64_t paced = std::min(now, (prompt_bytes_ + now) / 2);
  prompt_bytes_ = std::clamp(paced, std::min(kTellingBytes, limit_bytes_), limit_bytes_);
}

std::vector<QueuedPutPtr> WriteQueue::take(Clock::duration gather, Clock::time_point idle_until) {
  std::vector<QueuedPutPtr> batch;
  MutexLock lock(mutex_);
  while (waiting_.empty() && !is_stopping_) {
    if (!changed_.wait_until(mutex_, idle_until)) break;
  }
  if (waiting_.empty()) return batch;
  const auto gather_until = Clock::now() + gather;
  while (!must_write_now() && changed_.wait_until(mutex_, gather_until)) {
  }
  // Nothing of a batch is committed before all of it is.
  const std::uint64_t most_bytes =
      std::min(batch_bytes_, std::max(prompt_bytes_ / 2, kTellingBytes));
  std::uint64_t batch_bytes = 0;
  while (!waiting_.empty()) {
    const std::uint64_t next_bytes = waiting_.front()->size_bytes;
    if (batch_bytes > 0 && batch_bytes + next_bytes > most_bytes) break;
    batch_bytes += next_bytes;
    batch.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  taken_ = batch;
  return batch;
}

std::vector<QueuedPutPtr> WriteQueue::without_removed(const std::vector<QueuedPutPtr>& batch) {
  std::vector<QueuedPutPtr> kept;
  kept.reserve(batch.size());
  MutexLock lock(mutex_);
  for (const QueuedPutPtr& put : batch) {
    if (!put->is_removed_) kept.push_back(put);
  }
  return kept;
}

void WriteQueue::finish(const std::vector<QueuedPutPtr>& batch, const Status& status) {
  MutexLock lock(mutex_);
  if (status.is_ok()) note_pace(batch);
  for (const QueuedPutPtr& put : batch) {
    if (!status.is_ok() && !put->is_removed_ &&
        (unreported_.is_ok() || put->position_ < unreported_from_)) {
      if (unreported_.is_ok()) unreported_ = status;
      unreported_from_ = put->position_;
    }
    forget(put);
    mark_finished(*put);
  }
  const auto is_finished = [this](const QueuedPutPtr& put) MODCACHE_LOCKS_UNCHECKED {
    return put->position_ <= finished_ || finished_behind_[put->position_ - finished_ - 1];
  };
  taken_.erase(std::remove_if(taken_.begin(), taken_.end(), is_finished), taken_.end());
  changed_.notify_all();
}

void WriteQueue::put_back(std::vector<QueuedPutPtr> batch) {
  MutexLock lock(mutex_);
  taken_.clear();
  waiting_.insert(waiting_.begin(), std::make_move_iterator(batch.begin()),
                  std::make_move_iterator(batch.end()));
}

void WriteQueue::stop() {
  MutexLock lock(mutex_);
  is_stopping_ = true;
  changed_.notify_all();
}

bool WriteQueue::is_stopping() {
  MutexLock lock(mutex_);
  return is_stopping_;
}

}  // namespace modcache::store
