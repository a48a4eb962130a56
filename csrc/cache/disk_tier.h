// SPDX-License-Identifier: Apache-2.0
//
// DiskTier: entries in one directory, by way of a Store (store_handle.h).
//
// This is where a failing directory stops being anybody's problem: no call fails. A failure is
// counted and logged once for each cause, and a directory that fails or stalls is left alone for a
// while. Thread-safe; usable in a forked child.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/settings.h"
#include "cache/stats.h"
#include "cache/store_handle.h"
#include "cache/tier.h"
#include "fs/posix_file_system.h"

namespace modcache::cache {

class DiskTier final : public Tier {
 public:
  // Opens nothing. `format`, `stats`, `file_system` and `counters` must outlive the tier.
  // `counters` attach to the directory when it is first opened for a call that may write.
  DiskTier(const Settings& settings, const ValueFormat& format, Stats& stats,
           std::shared_ptr<StoreHandle> store,
           fs::FileSystem& file_system = fs::posix_file_system(),
           store::DirectoryCounters* counters = nullptr);
  // The same with a store of its own.
  DiskTier(const Settings& settings, const ValueFormat& format, Stats& stats,
           fs::FileSystem& file_system = fs::posix_file_system(),
           store::DirectoryCounters* counters = nullptr);
  ~DiskTier() override;

  const std::shared_ptr<StoreHandle>& store_handle() const { return handle_; }

  Counter hits() const override { return Counter::kHitsDisk; }
  // Rows, for one key as for many. A row that is damaged is one miss, counted and dropped; what
  // goes wrong with the directory counts once.
  void find(const Keys& keys, Access access, OnMiss on_miss, Found& found) override;
  // The same for callers without a Found; nullopt: the directory cannot be read.
  std::optional<FoundRows> find_rows(const Keys& keys, Access access);
  // Reads the row as one value, whatever its form.
  HeldEntry read(const store::EntryId& id, FoundRows& rows, std::size_t row, Access access,
                 Reading reading) override;
  // Rows that no directory can hold do not keep the others from being stored.
  void store(const Keys& keys, OneOrMany<EntryPtr>& entries, const StoreOptions& options,
             OneOrMany<Kept>& kept) override;
  // Keeps them as they were received, without decoding them.
  void store_rows(const Keys& keys, const FoundRows& rows, const std::vector<std::size_t>& which,
                  const std::optional<store::Moment>& since, OneOrMany<Kept>& kept) override;
  void take_back(const Keys& keys, std::span<const Kept> kept) override;
  void refuse(const store::EntryId& id, store::Sequence sequence, const Status& broken,
              Access access) override;
  void drop(const store::EntryId& id, Access access) override;
  void add_sizes(std::map<std::string, std::int64_t>& sizes, bool may_open) override;

  // Returns whether any process cleared the entry's scope or key since then.
  bool was_cleared(const store::EntryId& id, const store::Moment& since);

  // How many removals the directory has seen; while it cannot be asked, what it said last. Opens
  // a directory that is not open (in a forked child, say), or that is another by now. Otherwise a
  // few atomic loads.
  std::uint64_t removals(Access access = Access::kRead) { return handle_->removals(access); }
  // The sequence of an entry, and the count of removals when it was learned.
  struct Known {
    store::Sequence sequence = 0;
    std::uint64_t removals = 0;
  };
  // Whether each key still leads to what is known of it. False also where that was learned of
  // another directory that was here before.
  std::vector<bool> are_current(const store::EntryIds& ids, const std::vector<Known>& known);

  // The present moment of the directory, which opens at need; nullopt: it cannot be asked.
  std::optional<store::Moment> now(Access access);

  // Whether there is an entry, for each key, without a look at it: what is there may prove broken.
  std::vector<bool> are_there(const Keys& keys);
  // See store::Store::expect().
  std::size_t expect(const Keys& keys, std::uint64_t most_bytes);

  // Returns a note (store/directory/notes.h); nothing if there is none or the directory cannot be
  // read.
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

  // Opens the directory for writing where there is one.
  void open_if_there();
  // Commits what is queued and closes the directory until it is needed again.
  void close() { handle_->close(); }

 private:
  // A failure that took this long is a directory that stalls; two of them make the second that a
  // process may lose to it.
  static constexpr std::chrono::milliseconds kStall{200};

  store::EntryIds ids_of(const Keys& keys) const;

  StorePtr open(Access access);
  void attach_counters(const store::Store& store);
  void report(const Status& status, const char* during);
  // Null: nothing can be stored. Notes the count of removals from before the store.
  StorePtr store_to_write(OneOrMany<Kept>& kept);
  // puts[k] is for the key at places[k].
  void put(store::Store& store, const Keys& keys, const std::vector<std::size_t>& places,
           const std::vector<store::RowPut>& puts, OneOrMany<Kept>& kept);
  void refuse_broken(const Keys& keys, const FoundRows& rows, Access access);
  static Status first_failure(const store::FoundEntries& entries);
  // Counts a failure to store, and leaves the directory alone if it stalled.
  void report_store(const Status& status, std::chrono::steady_clock::time_point started);
  void count_not_kept(std::int64_t entries, std::uint64_t largest_bytes);

  const Settings settings_;
  const ValueFormat& format_;
  Stats& stats_;
  fs::FileSystem& file_system_;
  const std::shared_ptr<StoreHandle> handle_;
  store::DirectoryCounters* const counters_;
  std::atomic<const store::Store*> counted_in_{nullptr};  // the counters are attached to it
  std::atomic<std::int64_t> attach_again_at_ms_{0};
};

}  // namespace modcache::cache
