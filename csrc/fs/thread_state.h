// SPDX-License-Identifier: Apache-2.0
//
// Asks the system for the state of a thread of this process.
#pragma once

#include <sys/types.h>

namespace modcache::fs {

// Returns whether the thread sleeps in a lock or waits for a condition. False also where that
// cannot be told: there is no /proc, it may not be read, or the thread has ended.
bool is_in_lock(pid_t thread);

}  // namespace modcache::fs
