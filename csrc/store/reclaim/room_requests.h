// SPDX-License-Identifier: Apache-2.0
//
// RoomRequests: where those who need room in a directory ask for it and wait, and where the thread
// that makes room learns what was asked for. Thread-safe; its mutex is a leaf.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/mutex.h"
#include "store/reclaim/dead_space_looks.h"
#include "store/reclaim/disk_budget.h"

namespace modcache::store {

class RoomRequests {
 public:
  using Clock = std::chrono::steady_clock;

  // `budget` must outlive it. `max_age_us` is StoreOptions::max_age_us.
  RoomRequests(DiskBudget& budget, std::int64_t max_age_us)
      : budget_(budget), dead_space_looks_(max_age_us) {}
  RoomRequests(const RoomRequests&) = delete;
  RoomRequests& operator=(const RoomRequests&) = delete;

  DiskBudget& budget() { return budget_; }

  // Asks for a pass that makes room, and returns at once. `may_evict`: entries may leave for it;
  // else only dead space goes.
  void ask(std::uint64_t size_bytes, bool may_evict);
  // Asks for a pass over dead space, if there may be some that no pass has seen. `removals` is the
  // control page's.
  void ask_if_dead_space(std::uint64_t removals);
  // Asks, and returns once there is room, when passes bring no more, or at `deadline`.
  void wait(std::uint64_t size_bytes, bool may_evict, Clock::time_point deadline);

  // True for a second after a pass in which all that could leave left, and it was not enough.
  bool is_exhausted() const;
  void set_exhausted();

  // For the thread that makes room.
  struct Asked {
    bool is_asked = false;
    bool may_evict = false;
    std::uint64_t room_bytes = 0;
  };
  // Returns what was asked for since the last call. With `has_retired` it returns soon although
  // nobody asked, so that retired segments are looked at again.
  Asked wait_until_asked(bool has_retired);
  void finish_pass();

  void stop();
  bool is_stopping() const { return is_stopping_; }

 private:
  void ask_locked(std::uint64_t size_bytes, bool may_evict) MODCACHE_REQUIRES(mutex_);

  DiskBudget& budget_;
  DeadSpaceLooks dead_space_looks_;
  std::atomic<bool> is_stopping_{false};
  std::atomic<std::int64_t> exhausted_until_ms_{0};
  Mutex mutex_;
  CondVar changed_;
  Asked asked_ MODCACHE_GUARDED_BY(mutex_);
  std::uint64_t passes_ MODCACHE_GUARDED_BY(mutex_) = 0;
};

}  // namespace modcache::store
