// SPDX-License-Identifier: Apache-2.0
//
// StoreHandle: the Store of one directory, opened when it is first needed, and opened anew where
// the directory was removed or another one took its place.
//
// A directory that cannot be opened, or that its owner reports as failing, is left alone for
// kBackoff, so that it delays a process by at most about a second in all. Each failure to open is
// counted and logged. Thread-safe. A forked child opens a Store of its own and leaves the parent's
// alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "cache/settings.h"
#include "cache/stats.h"
#include "cache/tier.h"
#include "fs/file_system.h"
#include "store/store.h"

namespace modcache::cache {

using StorePtr = std::shared_ptr<store::Store>;

class StoreHandle {
 public:
  static constexpr std::chrono::seconds kBackoff{30};

  // Opens nothing. `file_system` must outlive the handle.
  StoreHandle(const Settings& settings, fs::FileSystem& file_system);
  ~StoreHandle();
  StoreHandle(const StoreHandle&) = delete;
  StoreHandle& operator=(const StoreHandle&) = delete;

  // Returns the handle that the caches of this process share for the directory of the settings, and
  // notes that `user` uses it from now on instead of any before. kInvalidArgument: another user has
  // the directory open with another `disk`, `durability` or `io`. A null user shares nothing.
  static Result<std::shared_ptr<StoreHandle>> acquire(const void* user, const Settings& settings,
                                                      fs::FileSystem& file_system);
  static void release(const void* user);

  // Returns whether a store for these settings would be the same.
  bool has_store_of(const Settings& settings) const;

  // The first of the listeners that are there counts what the store does on its own.
  void add_listener(Stats& stats);
  void remove_listener(Stats& stats);

  // Null while the directory is left alone, or where there is none to read. Opens it at need.
  StorePtr get(Access access);
  // The open store or null; never opens.
  StorePtr get_open();
  // Opens a directory that is there, for counters alone; null: it is not.
  StorePtr open_if_there();

  // How many removals the directory has seen; what it said last while it cannot be asked. Opens it
  // at need; otherwise a few atomic loads.
  std::uint64_t removals(Access access);

  // The directory failed or stalled: get() gives null for a while.
  void leave_alone(const Status& failure);

  // Also tried, once, while the directory is left alone. `why_not`: where it is null.
  StorePtr get_to_clear(std::string& why_not);
  // Clearing failed: the next get_to_clear() does not try it either.
  void leave_alone_to_clear(const Status& failure);

  // Commits what is queued and lets go of the directory until it is needed again.
  void close();

 private:
  using Clock = std::chrono::steady_clock;

  // The store if it still is that of the directory, or the one that is there now, or null.
  const StorePtr& attached(Access access) MODCACHE_REQUIRES(mutex_);
  StorePtr open(Access access) MODCACHE_REQUIRES(mutex_);
  store::StoreOptions options();
  void abandon_after_fork() MODCACHE_REQUIRES(mutex_);

  // The store's threads count, too, so this takes no lock but that of the listeners.
  void count(Counter counter, std::int64_t amount = 1);

  const Settings settings_;
  fs::FileSystem& file_system_;

  Mutex mutex_;
  StorePtr store_ MODCACHE_GUARDED_BY(mutex_);
  std::uint64_t fork_generation_ MODCACHE_GUARDED_BY(mutex_);
  std::uint64_t last_removals_ MODCACHE_GUARDED_BY(mutex_) = 0;
  Clock::time_point alone_until_ MODCACHE_GUARDED_BY(mutex_){};
  Clock::time_point no_clear_until_ MODCACHE_GUARDED_BY(mutex_){};
  std::string why_alone_ MODCACHE_GUARDED_BY(mutex_);
  // Reading calls do not look again before then: there was no directory, which is no failure.
  Clock::time_point missing_until_ MODCACHE_GUARDED_BY(mutex_){};
  std::uint64_t fork_registration_;
  Mutex listeners_mutex_;
  std::vector<Stats*> listeners_ MODCACHE_GUARDED_BY(listeners_mutex_);
  std::uint64_t listeners_fork_registration_;
};

}  // namespace modcache::cache
