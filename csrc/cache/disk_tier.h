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
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "cache/context.h"
#include "cache/found_rows.h"
#include "cache/settings.h"
#include "cache/stats.h"
#include "cache/value.h"
#include "fs/posix_file_system.h"
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

  // Opens nothing. `format`, `stats` and `file_system` must outlive the tier.
  DiskTier(const Settings& settings, const ValueFormat& format, Stats& stats,
           fs::FileSystem& file_system = fs::posix_file_system());
  ~DiskTier();
  DiskTier(const DiskTier&) = delete;
  DiskTier& operator=(const DiskTier&) = delete;

  Found get(const store::EntryId& id, Access access);
  // Many keys of one context. A row that is damaged is one miss, counted and dropped like an
  // entry; what goes wrong with the directory counts once.
  FoundRows get_all(const store::Context& context, const std::vector<std::string_view>& keys,
                    Access access);
  // An entry of which something proved broken after it was found: counts it and drops it, as get()
  // does.
  void refuse(const store::EntryId& id, store::Sequence sequence, const Status& broken,
              Access access);
  bool contains(const store::EntryId& id);
  // What the directory says of an entry; reads no value, and neither counts nor drops anything.
  std::optional<Sighting> look(const store::EntryId& id);

  // The new entry's sequence, or 0 when the directory did not take it. `replaces`: see store::Put.
  store::Sequence put(const store::EntryId& id, const Entry& entry, bool replaces = false);
  // The same for many. Rows that no directory can hold do not keep the others from being stored.
  std::vector<store::Sequence> put_all(const store::Context& context,
                                       const std::vector<std::string_view>& keys,
                                       const std::vector<EntryPtr>& entries, bool replaces = false);

  // How many removals the directory has seen; while it cannot be asked, what it said last. Opens
  // a directory that is not open (in a forked child, say), or that is another by now. Otherwise a
  // few atomic loads.
  std::uint64_t removals(Access access = Access::kRead);
  // What was learned of an entry: its sequence, and the removals of then.
  struct Known {
    store::Sequence sequence = 0;
    std::uint64_t removals = 0;
  };
  // False also where it was learned of another directory that was here before.
  bool is_current(const store::EntryId& id, const Known& known);
  std::vector<bool> are_current(const store::Context& context,
                                const std::vector<std::string_view>& keys,
                                const std::vector<Known>& known);

  // What is noted (store/notes.h); nothing where nothing is, or the directory cannot be asked.
  std::optional<std::string> find_note(std::string_view about, Access access);
  // Notes it where the directory can be written; a note is worth no message.
  void keep_note(std::string_view about, std::string_view text);

  // Also tried, once, while the directory is left alone. An error where the directory could not be
  // cleared: what is in it will be found again.
  std::int64_t clear(const store::ClearFilter& filter);
  // True when all that was put before is safe.
  bool flush();
  // Zero while the directory is not open, unless `may_open`.
  store::Totals totals(bool may_open);

  // Commits what is queued and lets go of the directory until it is needed again.
  void close();

 private:
  using StorePtr = std::shared_ptr<store::Store>;

  // A failure that took this long is a directory that stalls; two of them make the second that a
  // process may lose to it.
  static constexpr std::chrono::milliseconds kStall{200};

  // Null while the directory is left alone. Opens it at need.
  StorePtr store(Access access);
  // Null also while the directory is left alone.
  StorePtr open_store(Access access) MODCACHE_REQUIRES(mutex_);
  StorePtr store_to_clear(std::string& why_not);
  // The open store, or null; never opens.
  StorePtr open_or_null();
  void abandon_after_fork() MODCACHE_REQUIRES(mutex_);
  void report(const Status& status, const char* during);
  void refuse_broken(const store::Context& context, const std::vector<std::string_view>& keys,
                     const FoundRows& rows, Access access);
  static Status first_failure(const store::FoundEntries& entries);
  void leave_alone(const Status& failure);
  // What storing failed with, if it did: counts it, and leaves a directory alone that stalled.
  void report_store(const Status& status, std::chrono::steady_clock::time_point started);
  void count_not_kept(std::int64_t entries, std::uint64_t largest_bytes);

  const Settings settings_;
  const ValueFormat& format_;
  Stats& stats_;
  fs::FileSystem& file_system_;

  Mutex mutex_;
  StorePtr store_ MODCACHE_GUARDED_BY(mutex_);
  std::uint64_t fork_generation_ MODCACHE_GUARDED_BY(mutex_);
  std::uint64_t last_removals_ MODCACHE_GUARDED_BY(mutex_) = 0;
  std::chrono::steady_clock::time_point alone_until_ MODCACHE_GUARDED_BY(mutex_){};
  std::chrono::steady_clock::time_point no_clear_until_ MODCACHE_GUARDED_BY(mutex_){};
  std::string why_alone_ MODCACHE_GUARDED_BY(mutex_);
  // Reading calls do not look again before then: there was no directory, which is no failure.
  std::chrono::steady_clock::time_point missing_until_ MODCACHE_GUARDED_BY(mutex_){};
  std::uint64_t fork_ticket_;
};

}  // namespace modcache::cache
