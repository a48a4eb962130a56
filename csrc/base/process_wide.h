// SPDX-License-Identifier: Apache-2.0
//
// ProcessWide: what a process has one of. It is made at its first use and never destroyed, since
// threads of a host may call while the process exits; its mutex is held across fork, so that a
// child can go on using it.
//
//     struct Seen : ProcessWide<Seen> {
//       std::set<std::string> names MODCACHE_GUARDED_BY(mutex);
//     };
//     MutexLock lock(Seen::instance().mutex);
#pragma once

#include <atomic>

#include "base/fork.h"
#include "base/mutex.h"

namespace modcache {

// The base of T. REQUIRES: nobody makes a T but instance().
template <typename T>
class ProcessWide {
 public:
  // Thread-safe. Costs one atomic load after the first call.
  static T& instance() {
    static std::atomic<T*> only{nullptr};
    T* const made = only.load(std::memory_order_acquire);
    return made != nullptr ? *made : make(only);
  }

  Mutex mutex;

 private:
  friend T;
  // A static of this function would be made under a guard of the compiler's, for which a child that
  // is forked meanwhile waits for ever.
  static T& make(std::atomic<T*>& only) {
    const ForkPause pause;
    if (T* const there = only.load(std::memory_order_acquire)) return *there;
    T* const made = new T;
    hold_across_fork(made->mutex);
    only.store(made, std::memory_order_release);
    return *made;
  }

  ProcessWide() = default;
  ~ProcessWide() = default;
};

}  // namespace modcache
