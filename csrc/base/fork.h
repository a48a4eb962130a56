// SPDX-License-Identifier: Apache-2.0
//
// fork(): the child has one thread, and a mutex that another thread held at that moment stays
// locked in it for ever. So mutexes that the child will use are held across fork. Things that
// cannot cross it (connections, background threads, lock files) are left behind: owners compare
// fork_generation() with the value at their construction and renew themselves.
#pragma once

#include <cstdint>
#include <functional>

#include "base/mutex.h"

namespace modcache {

// 0 in the first process, one more in each child. Costs one atomic load.
std::uint64_t fork_generation();

// Holds `mutex` while this process forks: fork waits until all such mutexes are free at once. Their
// order does not matter, and this may be called while some of them are held. Returns a handle; an
// owner must pass it to stop_holding_across_fork before its mutex is destroyed.
std::uint64_t hold_across_fork(Mutex& mutex);
void stop_holding_across_fork(std::uint64_t registration);

// While it lives, fork waits, as for a mutex that is held across it; and so do other threads that
// make one. Nests within a thread. For what a thread makes once for all: a child that is forked
// meanwhile would find it half made, with nobody to go on. REQUIRES: the thread does not fork.
class [[nodiscard]] ForkPause {
 public:
  ForkPause();
  ~ForkPause();
  ForkPause(const ForkPause&) = delete;
  ForkPause& operator=(const ForkPause&) = delete;
};

// Runs `action` in each forked child right after fork, once all held mutexes are free again. Only
// async-signal-safe work and writes to memory belong into it. It is never unregistered.
void run_in_forked_child(std::function<void()> action);

}  // namespace modcache
