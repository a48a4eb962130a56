// SPDX-License-Identifier: Apache-2.0
//
// LeaderWatch: whether a thread that others wait for seems to wait for a thread itself. A module
// may hand work to another thread and wait for it; if that work asks for the key that the module is
// run for, both would wait for each other. Nobody can know that for certain. What can be seen is
// that the leader sleeps in a lock, and has not used its processor for a while.
//
// Linux only; elsewhere, and where /proc cannot be read, the answer is no.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <ctime>

namespace modcache::cache {

// A thread as others can watch it. Copyable; stays valid when the thread has ended.
struct WatchedThread {
  pid_t id = 0;
  clockid_t clock{};  // of the processor time that it used
  bool has_clock = false;
};
WatchedThread watched_self();

// One waiter's look at one thread, again and again. Not for use by several threads.
class LeaderWatch {
 public:
  // A wait in a lock is ordinary; so long a one while others wait for the key is not.
  static constexpr std::chrono::milliseconds kLongestBlocked{1000};
  static constexpr std::chrono::milliseconds kInterval{100};  // between two looks

  explicit LeaderWatch(const WatchedThread& leader) : leader_(leader) {}

  // Whether the leader has slept in a lock, and used no processor time, for kLongestBlocked.
  bool is_blocked();

 private:
  const WatchedThread leader_;
  std::chrono::nanoseconds used_{-1};
  std::chrono::steady_clock::time_point since_;
};

}  // namespace modcache::cache
