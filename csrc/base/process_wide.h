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

#include "base/fork.h"
#include "base/mutex.h"

namespace modcache {

// The base of T. REQUIRES: nobody makes a T but instance().
template <typename T>
class ProcessWide {
 public:
  // Thread-safe. Costs one atomic load after the first call.
  static T& instance() {
    static T* const only = [] {
      auto* made = new T;
      hold_across_fork(made->mutex);
      return made;
    }();
    return *only;
  }

  Mutex mutex;

 private:
  friend T;
  ProcessWide() = default;
  ~ProcessWide() = default;
};

}  // namespace modcache
