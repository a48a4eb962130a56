// SPDX-License-Identifier: Apache-2.0
//
// Breaker: whether a server is to be left alone. It opens with a failure, for kFirstPause, and for
// twice as long with each failed probe, up to kLongestPause. While it is open nobody's call waits
// for the server: a thread of the client probes it once the pause is over, and closes the breaker
// when the probe succeeds. A server that answers probes and fails the calls after them is left
// alone for longer and longer, too. Thread-safe, also in a forked child; is_closed() is one atomic
// load.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/fork.h"
#include "base/mutex.h"

namespace modcache::remote {

class Breaker {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kFirstPause{1'000};
  static constexpr std::chrono::milliseconds kLongestPause{30'000};

  Breaker() : fork_registration_(hold_across_fork(mutex_)) {}
  ~Breaker() { stop_holding_across_fork(fork_registration_); }
  Breaker(const Breaker&) = delete;
  Breaker& operator=(const Breaker&) = delete;

  bool is_closed() const { return is_closed_.load(std::memory_order_acquire); }

  // A call failed. Returns whether that opened the breaker.
  bool note_failure();
  // The probe of an open breaker failed: the next pause is longer.
  void note_failed_probe();
  // The server answered a probe.
  void close();
  // The server answered a call.
  void note_success() {
    if (!is_proven_.load(std::memory_order_relaxed)) is_proven_.store(true);
  }

  // When an open breaker is to be probed.
  Clock::time_point probe_at();

 private:
  std::atomic<bool> is_closed_{true};
  std::atomic<bool> is_proven_{true};  // a call succeeded since the last failure
  Mutex mutex_;
  std::chrono::milliseconds pause_ MODCACHE_GUARDED_BY(mutex_) = kFirstPause;
  Clock::time_point probe_at_ MODCACHE_GUARDED_BY(mutex_){};
  std::uint64_t fork_registration_;
};

}  // namespace modcache::remote
