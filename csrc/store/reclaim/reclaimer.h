// SPDX-License-Identifier: Apache-2.0
//
// Reclaimer: makes room in a directory, in a thread of its own for those who ask (room()), and in
// the caller's thread for evict(). A pass empties segments one after another. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>

#include "base/mutex.h"
#include "base/result.h"
#include "store/attached/attached_directory.h"
#include "store/commit/committer.h"
#include "store/entry/totals.h"
#include "store/queue/write_queue.h"
#include "store/reclaim/disk_budget.h"
#include "store/reclaim/reclaim_pass.h"
#include "store/reclaim/room_requests.h"
#include "store/reclaim/segment_emptier.h"
#include "store/reclaim/segment_survey.h"
#include "store/usage/usage_tracker.h"

namespace modcache::store {

class Reclaimer {
 public:
  // All of them must outlive it.
  Reclaimer(AttachedDirectory& attached, Committer& committer, DiskBudget& budget,
            WriteQueue& queue, UsageTracker& usage);
  // Stops the thread, at the end of a step.
  ~Reclaimer();
  Reclaimer(const Reclaimer&) = delete;
  Reclaimer& operator=(const Reclaimer&) = delete;

  // Starts the thread, which may throw. REQUIRES: the directory is not only read.
  void start();

  RoomRequests& room() { return requests_; }

  // See store.h; but puts that wait to be written are left alone.
  Result<Evicted> evict(std::uint64_t to_bytes) MODCACHE_EXCLUDES(pass_mutex_);

 private:
  using Clock = std::chrono::steady_clock;
  // Whether a pass also makes up for what others write while it runs.
  enum class Chase { kAsLargeAsItWas, kAsLargeAsItIs };

  void reclaim_until_stopped();
  Result<Evicted> reclaim(std::uint64_t to_bytes, bool may_evict, Chase chase)
      MODCACHE_EXCLUDES(pass_mutex_);
  Status run(ReclaimPass& pass) MODCACHE_REQUIRES(pass_mutex_);
  // Returns the bytes that are still to go.
  std::uint64_t excess_bytes(ReclaimPass& pass) MODCACHE_REQUIRES(pass_mutex_);
  bool is_reached(ReclaimPass& pass) MODCACHE_REQUIRES(pass_mutex_);

  AttachedDirectory& attached_;
  Committer& committer_;
  DiskBudget& budget_;
  WriteQueue& queue_;
  RoomRequests requests_;
  // One pass at a time. It is taken before all other locks, and by nobody who must not wait.
  Mutex pass_mutex_;
  SegmentSurvey survey_ MODCACHE_GUARDED_BY(pass_mutex_);
  SegmentEmptier emptier_ MODCACHE_GUARDED_BY(pass_mutex_);
  std::thread thread_;
};

}  // namespace modcache::store
