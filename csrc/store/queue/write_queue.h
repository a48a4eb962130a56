// SPDX-License-Identifier: Apache-2.0
//
// WriteQueue: what was put and is not committed yet. Bounded by its payload bytes; put() fills
// it, one background thread empties it, find() looks through it. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/mutex.h"
#include "base/result.h"
#include "store/entry/clear.h"
#include "store/entry/entry_id.h"
#include "store/entry/put.h"

namespace modcache::store {

struct QueuedPut {
  static constexpr Sequence kWhenPut = std::numeric_limits<Sequence>::max();

  std::shared_ptr<const Context> context;
  std::string key;
  Digest128 address;     // of the two
  std::string own_part;  // of the header (own_part.h), or empty
  SharedHeader header;   // its shared part
  SharedBytes payload;
  std::int64_t run_us = 0;
  std::int64_t stored_at_us = 0;
  Sequence sequence = 0;
  std::size_t header_size_bytes() const { return own_part.size() + header->size(); }

  // A clear covers the entry if it came after these: the count of clears and the last sequence when
  // the call began, or when the entry was put.
  std::uint64_t clears = 0;
  Sequence begun_at = kWhenPut;
  std::uint64_t size_bytes = 0;  // what it will take on disk
  bool replaces = false;
  bool may_evict = false;  // others may leave for it

 private:
  friend class WriteQueue;
  // The queue's own, under its lock.
  mutable std::uint64_t position_ = 0;
  mutable bool is_removed_ = false;
};
using QueuedPutPtr = std::shared_ptr<const QueuedPut>;

class WriteQueue {
 public:
  using Clock = std::chrono::steady_clock;
  // Counts what was ever pushed: the place of a put in the order of writing.
  using Position = std::uint64_t;

  // A batch that is taken has at most `batch_bytes`, or is one put.
  explicit WriteQueue(std::uint64_t limit_bytes, std::uint64_t batch_bytes = kBatchBytes);

  // Waits until there is room, kBusy at `deadline`. What is larger than the limit goes alone.
  Result<Position> push(QueuedPutPtr put, Clock::time_point deadline);
  // The same for each in turn, under one lock. `pushed` is how many there was room for; the
  // position is that of the last of them.
  Result<Position> push_all(const std::vector<QueuedPutPtr>& puts, Clock::time_point deadline,
                            std::size_t& pushed);
  // The latest put of each id that waits, or null for one that has none; empty
  // when nothing waits at all, which takes no lock.
  std::vector<QueuedPutPtr> find_all(const EntryIds& ids);
  // Takes out what `clear` covers; of it, what is being written is no longer found, and
  // without_removed() leaves it out. Returns the latest put of each id.
  std::vector<QueuedPutPtr> remove(const Clear& clear);
  // The same for puts with these sequences, by the addresses of their keys. Returns how many of
  // them were found.
  std::size_t remove(const std::unordered_map<Digest128, Sequence, Digest128Hash>& sequences);
  std::uint64_t size_bytes();

  // Returns when all up to `position` was written, removed or failed; kBusy at `deadline`; else the
  // first failure of these that no call before it was told of. Calls at the same time are all told.
  Status wait_for(Position position, Clock::time_point deadline);
  Position last_position();
  bool is_waited_for();
  int waiters();  // how many calls of wait_for() there are at the moment

  // For the writer. Waits until something is queued and then for more of it, at most
  // `gather`; gives up at `idle_until` with an empty batch.
  std::vector<QueuedPutPtr> take(Clock::duration gather, Clock::time_point idle_until);
  // Returns the puts of the batch that are still to be written.
  std::vector<QueuedPutPtr> without_removed(const std::vector<QueuedPutPtr>& batch);
  // These of the batch are dealt with: they are no longer found here.
  void finish(const std::vector<QueuedPutPtr>& batch, const Status& status);
  // Says that the batch is written from now on: the pace of the disk is measured from here.
  void begin_write();
  // Puts the batch back to the front, to be taken again.
  void put_back(std::vector<QueuedPutPtr> batch);
  // From now on take() does not wait, and gives an empty batch when nothing is queued.
  void stop();
  bool is_stopping();

  static constexpr std::uint64_t kBatchBytes = 32 << 20;
  // Queued puts are to be committed within this time, judged by the pace of earlier writes. Callers
  // wait for that, at most as long again. If a disk stalls for longer they go on, up to the limit.
  static constexpr std::chrono::milliseconds kMostAge{50};

 private:
  // Beyond this much, waiting for more makes the writes no larger.
  static constexpr std::uint64_t kEnoughBytes = 8 << 20;

  bool wait_for_room(std::uint64_t size_bytes, Clock::time_point prompt_until,
                     Clock::time_point deadline) MODCACHE_REQUIRES(mutex_);
  void note_pace(const std::vector<QueuedPutPtr>& batch) MODCACHE_REQUIRES(mutex_);
  void push_locked(QueuedPutPtr put) MODCACHE_REQUIRES(mutex_);
  std::vector<QueuedPutPtr> remove_covered(const std::function<bool(const QueuedPut&)>& is_covered)
      MODCACHE_REQUIRES(mutex_);
  void forget(const QueuedPutPtr& put) MODCACHE_REQUIRES(mutex_);
  void mark_finished(const QueuedPut& put) MODCACHE_REQUIRES(mutex_);
  bool must_write_now() const MODCACHE_REQUIRES(mutex_);

  const std::uint64_t limit_bytes_;
  const std::uint64_t batch_bytes_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<QueuedPutPtr> waiting_ MODCACHE_GUARDED_BY(mutex_);
  std::vector<QueuedPutPtr> taken_ MODCACHE_GUARDED_BY(mutex_);  // are being written
  // The latest put of each address that waits or is being written.
  std::unordered_map<Digest128, QueuedPutPtr, Digest128Hash> latest_ MODCACHE_GUARDED_BY(mutex_);
  std::atomic<bool> has_any_{false};  // whether latest_ has
  std::uint64_t size_bytes_ MODCACHE_GUARDED_BY(mutex_) = 0;
  // The size that the disk writes within kMostAge. Little is known before the first writes.
  std::uint64_t prompt_bytes_ MODCACHE_GUARDED_BY(mutex_) = 16 << 20;
  std::optional<Clock::time_point> write_began_ MODCACHE_GUARDED_BY(mutex_);
  Position pushed_ MODCACHE_GUARDED_BY(mutex_) = 0;
  Position finished_ MODCACHE_GUARDED_BY(mutex_) = 0;  // all up to it are
  // Whether those that follow it are.
  std::deque<bool> finished_behind_ MODCACHE_GUARDED_BY(mutex_);
  Position wanted_ MODCACHE_GUARDED_BY(mutex_) = 0;  // somebody waits for it
  bool is_stopping_ MODCACHE_GUARDED_BY(mutex_) = false;
  Status unreported_ MODCACHE_GUARDED_BY(mutex_);
  Position unreported_from_ MODCACHE_GUARDED_BY(mutex_) = 0;
  int waiters_ MODCACHE_GUARDED_BY(mutex_) = 0;
};

}  // namespace modcache::store
