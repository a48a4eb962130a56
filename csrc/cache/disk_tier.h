// SPDX-License-Identifier: Apache-2.0
//
// DiskTier: entries in one directory, by way of a Store that is opened when it is first needed.
//
// This is where a failing directory stops being anybody's problem: no call fails. A failure is
// counted and logged once per cause, and a directory that fails or stalls is left alone for
// kBackoff, so that it delays a process by at most about a second in all.
// Thread-safe. A forked child opens its own Store and leaves the parent's alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "cache/context.h"
#include "cache/settings.h"
#include "cache/stats.h"
#include "cache/value.h"
#include "store/store.h"

namespace modcache::cache {

class DiskTier {
 public:
  static constexpr std::chrono::seconds kBackoff{30};

  struct Found {
    EntryPtr entry;  // null: a miss
    store::Sequence sequence = 0;
    std::uint64_t removals = 0;  // of the directory, before the entry was looked up
  };

  // What the mode allows. A directory that is not there is only made by a call that may write, and
  // only such a call drops an entry that proves damaged.
  enum class Access { kRead, kWrite };

  // Opens nothing. `format` and `stats` must outlive the tier.
  DiskTier(const Settings& settings, const ValueFormat& format, Stats& stats);
  ~DiskTier();
  DiskTier(const DiskTier&) = delete;
  DiskTier& operator=(const DiskTier&) = delete;

  Found get(const store::EntryId& id, Access access);
  bool contains(const store::EntryId& id);

  // The new entry's sequence, or 0 when the directory did not take it.
  store::Sequence put(const store::EntryId& id, const Entry& entry);

  // How many removals the directory has seen; while it cannot be asked, what it said last. Opens
  // a directory that is not open: in a forked child, say. Otherwise one atomic load.
  std::uint64_t removals();
  bool is_current(const store::EntryId& id, store::Sequence sequence);

  std::int64_t clear(const store::ClearFilter& filter);
  // True when all that was put before is safe.
  bool flush();
  // Zero while the directory is not open, unless `may_open`.
  store::Totals totals(bool may_open);

  // Commits what is queued and lets go of the directory until it is needed again.
  void close();

 private:
  using StorePtr = std::shared_ptr<store::Store>;

  // Null while the directory is left alone. Opens it at need.
  StorePtr store(Access access);
  // Null also while the directory is left alone.
  StorePtr open_store(Access access) MODCACHE_REQUIRES(mutex_);
  // The open store, or null; never opens.
  StorePtr open_or_null();
  void abandon_after_fork() MODCACHE_REQUIRES(mutex_);
  void report(const Status& status, const char* during);
  void leave_alone();

  const Settings settings_;
  const ValueFormat& format_;
  Stats& stats_;

  Mutex mutex_;
  StorePtr store_ MODCACHE_GUARDED_BY(mutex_);
  std::uint64_t fork_generation_ MODCACHE_GUARDED_BY(mutex_);
  std::uint64_t last_removals_ MODCACHE_GUARDED_BY(mutex_) = 0;
  std::chrono::steady_clock::time_point alone_until_ MODCACHE_GUARDED_BY(mutex_){};
  // Reading calls do not look again before then: there was no directory, which is no failure.
  std::chrono::steady_clock::time_point missing_until_ MODCACHE_GUARDED_BY(mutex_){};
  std::uint64_t fork_ticket_;
};

}  // namespace modcache::cache
