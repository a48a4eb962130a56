// SPDX-License-Identifier: Apache-2.0
#include "remote/breaker.h"

#include <algorithm>

namespace modcache::remote {

bool Breaker::note_failure() {
  MutexLock lock(mutex_);
  if (!is_closed()) return false;
  pause_ = is_proven_.exchange(false) ? kFirstPause : std::min(pause_ * 2, kLongestPause);
  probe_at_ = Clock::now() + pause_;
  is_closed_.store(false, std::memory_order_release);
  return true;
}

void Breaker::note_failed_probe() {
  MutexLock lock(mutex_);
  pause_ = std::min(pause_ * 2, kLongestPause);
  probe_at_ = Clock::now() + pause_;
}

void Breaker::close() {
  MutexLock lock(mutex_);
  is_closed_.store(true, std::memory_order_release);
}

Breaker::Clock::time_point Breaker::probe_at() {
  MutexLock lock(mutex_);
  return probe_at_;
}

}  // namespace modcache::remote
