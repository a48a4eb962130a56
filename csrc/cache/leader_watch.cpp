// SPDX-License-Identifier: Apache-2.0
#include "cache/leader_watch.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fs/thread_state.h"

namespace modcache::cache {
namespace {

using SteadyClock = std::chrono::steady_clock;

// -1: unknown, as of a thread that has ended.
std::chrono::nanoseconds processor_time_of(const WatchedThread& thread) {
  timespec used{};
  if (!thread.has_clock || ::clock_gettime(thread.clock, &used) != 0) {
    return std::chrono::nanoseconds{-1};
  }
  return std::chrono::seconds{used.tv_sec} + std::chrono::nanoseconds{used.tv_nsec};
}

}  // namespace

WatchedThread watched_self() {
  WatchedThread self;
  self.id = static_cast<pid_t>(::syscall(SYS_gettid));
  self.has_clock = ::pthread_getcpuclockid(::pthread_self(), &self.clock) == 0;
  return self;
}

bool LeaderWatch::is_blocked() {
  const std::chrono::nanoseconds used = processor_time_of(leader_);
  const auto now = SteadyClock::now();
  if (used.count() < 0 || used != used_ || !fs::is_in_lock(leader_.id)) {
    used_ = used;
    since_ = now;
    return false;
  }
  return now - since_ >= kLongestBlocked;
}

}  // namespace modcache::cache
