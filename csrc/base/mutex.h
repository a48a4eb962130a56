// SPDX-License-Identifier: Apache-2.0
//
// std::mutex with the annotations that let clang check locking at compile time
// (-Wthread-safety); on other compilers the annotations vanish.
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define MODCACHE_ANNOTATE(x) __attribute__((x))
#else
#define MODCACHE_ANNOTATE(x)
#endif
#define MODCACHE_GUARDED_BY(mutex) MODCACHE_ANNOTATE(guarded_by(mutex))
#define MODCACHE_REQUIRES(mutex) MODCACHE_ANNOTATE(requires_capability(mutex))
// For a function that returns a reference to this mutex, through which others take it.
#define MODCACHE_RETURNS_MUTEX(mutex) MODCACHE_ANNOTATE(lock_returned(mutex))
#define MODCACHE_EXCLUDES(mutex) MODCACHE_ANNOTATE(locks_excluded(mutex))
// For a function that locks in a way clang cannot follow; a comment beside it says what holds
// instead.
#define MODCACHE_LOCKS_UNCHECKED MODCACHE_ANNOTATE(no_thread_safety_analysis)

namespace modcache {

class MODCACHE_ANNOTATE(capability("mutex")) Mutex {
 public:
  void lock() MODCACHE_ANNOTATE(acquire_capability()) { mutex_.lock(); }
  bool try_lock() MODCACHE_ANNOTATE(try_acquire_capability(true)) { return mutex_.try_lock(); }
  void unlock() MODCACHE_ANNOTATE(release_capability()) { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class MODCACHE_ANNOTATE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) MODCACHE_ANNOTATE(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() MODCACHE_ANNOTATE(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// A wait releases the mutex and takes it again. REQUIRES for every wait: the mutex is held.
class CondVar {
 public:
  void notify_all() { condition_.notify_all(); }

  // std::condition_variable::wait of GCC 12 needs a newer libstdc++ than some systems have that
  // torch runs on, so this calls pthread itself.
  void wait(Mutex& mutex) MODCACHE_REQUIRES(mutex) {
    ::pthread_cond_wait(condition_.native_handle(), mutex.mutex_.native_handle());
  }
  // Returns false when `deadline` (of a steady clock) passed first.
  template <typename TimePoint>
  bool wait_until(Mutex& mutex, const TimePoint& deadline) MODCACHE_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const auto outcome = condition_.wait_until(lock, deadline);
    lock.release();
    return outcome == std::cv_status::no_timeout;
  }

 private:
  std::condition_variable condition_;
};

}  // namespace modcache
