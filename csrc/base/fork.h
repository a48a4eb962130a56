// SPDX-License-Identifier: Apache-2.0
//
// fork(): the child has one thread, and whatever other threads had locked stays locked in it.
// Locks that the child will use are therefore held across fork, and what cannot cross it
// (connections, background threads, lock files) is left behind: owners compare
// fork_generation() with the value they were made under and renew themselves.
#pragma once

#include <cstdint>
#include <functional>

#include "base/mutex.h"

namespace modcache {

// 0 in the first process, one more in each child. One atomic load.
std::uint64_t fork_generation();

// Holds `mutex` while this process forks, which waits until all such locks are free at once; their
// order does not matter, and this may be called with some of them held. Returns a ticket for
// stop_holding_across_fork, which an owner that dies must call.
std::uint64_t hold_across_fork(Mutex& mutex);
void stop_holding_across_fork(std::uint64_t ticket);

// Runs in the child right after fork, once all held locks are free again. Only
// async-signal-safe work and plain memory writes belong here. Never unregistered.
void run_in_forked_child(std::function<void()> action);

}  // namespace modcache
