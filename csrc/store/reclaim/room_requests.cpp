// SPDX-License-Identifier: Apache-2.0
#include "store/reclaim/room_requests.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace modcache::store {
namespace {

// Threads that wait look this often whether there is room, since another process may have made it.
constexpr std::chrono::milliseconds kLookForRoom{20};
constexpr std::chrono::milliseconds kRetiredCheck{250};
constexpr std::int64_t kExhaustedMs = 1000;

}  // namespace

void RoomRequests::ask(std::uint64_t size_bytes, bool may_evict) {
  MutexLock lock(mutex_);
  ask_locked(size_bytes, may_evict);
}

void RoomRequests::ask_locked(std::uint64_t size_bytes, bool may_evict) {
  if (!asked_.is_asked) changed_.notify_all();
  asked_.is_asked = true;
  asked_.may_evict = asked_.may_evict || may_evict;
  asked_.room_bytes = std::max(asked_.room_bytes, size_bytes);
}

void RoomRequests::ask_if_dead_space(std::uint64_t removals) {
  if (dead_space_looks_.is_due(removals, steady_now_ms())) ask(0, false);
}

void RoomRequests::wait(std::uint64_t size_bytes, bool may_evict, Clock::time_point deadline) {
  ask(size_bytes, may_evict);
  while (true) {
    budget_.measure();
    if (budget_.fits(size_bytes) || Clock::now() >= deadline) return;
    MutexLock lock(mutex_);
    const std::uint64_t seen = passes_;
    const auto look_again = Clock::now() + kLookForRoom;
    while (passes_ == seen && changed_.wait_until(mutex_, look_again)) {
    }
    if (passes_ != seen && (!may_evict || is_exhausted())) return;
    if (!asked_.is_asked) ask_locked(size_bytes, may_evict);
  }
}

bool RoomRequests::is_exhausted() const { return steady_now_ms() < exhausted_until_ms_; }

void RoomRequests::set_exhausted() { exhausted_until_ms_ = steady_now_ms() + kExhaustedMs; }

RoomRequests::Asked RoomRequests::wait_until_asked(bool has_retired) {
  MutexLock lock(mutex_);
  const auto until = Clock::now() + kRetiredCheck;
  while (!asked_.is_asked && !is_stopping_) {
    if (!has_retired) {
      changed_.wait(mutex_);
    } else if (!changed_.wait_until(mutex_, until)) {
      break;
    }
  }
  return std::exchange(asked_, {});
}

void RoomRequests::finish_pass() {
  MutexLock lock(mutex_);
  ++passes_;
  changed_.notify_all();
}

void RoomRequests::stop() {
  MutexLock lock(mutex_);
  is_stopping_ = true;
  changed_.notify_all();
}

}  // namespace modcache::store
