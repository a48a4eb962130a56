// SPDX-License-Identifier: Apache-2.0
//
// RemoteTier: entries on a server that many machines share, the farthest tier.
//
// It never hurts: a call waits for the server at most `remote_timeout_ms`, a server that fails is
// left alone for a while, and writes happen behind (remote/write_behind.h). Rows that it answers
// with were verified, and are kept by the tiers before it. Thread-safe; usable in a forked child.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "cache/disk_tier.h"
#include "cache/remote_server.h"
#include "cache/remote_write.h"
#include "cache/settings.h"
#include "cache/stats.h"
#include "cache/tier.h"
#include "remote/record.h"
#include "store/found/received_rows.h"

namespace modcache::cache {

class RemoteTier final : public Tier, private remote::WriteBehind::Listener {
 public:
  // A server that cannot be had (no library, no certificate) is tried again after so long.
  static constexpr std::chrono::seconds kTryAgainAfter{30};
  // How long close() waits for what is still to be written.
  static constexpr std::chrono::seconds kLongestGoodbye{5};

  // Connects to nothing. `format` and `stats` must outlive the tier. REQUIRES: settings.remote is
  // an address.
  RemoteTier(const Settings& settings, const ValueFormat& format, Stats& stats,
             ConnectRemote connect = connect_by_library);
  ~RemoteTier() override;

  // Tells it of the directory before it, in which other processes of this machine may clear and
  // replace.
  void comes_after(const std::shared_ptr<DiskTier>& directory);

  Counter hits() const override { return Counter::kHitsRemote; }
  bool is_far() const override { return true; }
  void find(const Keys& keys, Access access, OnMiss on_miss, Found& found) override;
  HeldEntry read(const store::EntryId& id, FoundRows& rows, std::size_t row, Access access,
                 Reading reading) override;
  void store(const Keys& keys, OneOrMany<EntryPtr>& entries, const StoreOptions& options,
             OneOrMany<Kept>& kept) override;
  // Returns the mark with which a result is stored whose call begins now; null: there is no server.
  std::shared_ptr<const MarkOfWrite> mark(const std::string& scope);
  void refuse(const store::EntryId& id, store::Sequence sequence, const Status& broken,
              Access access) override;
  void drop(const store::EntryId& id, Access access) override;
  void add_sizes(std::map<std::string, std::int64_t>&, bool) override {}

  // Nothing of the scope that was stored before `older_than_us` is found any more; 0: nothing. An
  // empty scope: of the whole namespace. Other machines see that within a second. False, with a log
  // line, where the server could not be told.
  bool clear(const std::string& scope, std::int64_t older_than_us);

  // Waits for what is to be written, as long as the server takes it and at most kLongestFlush.
  static constexpr std::chrono::seconds kLongestFlush{60};
  void flush();
  // Writes what waits, for at most kLongestGoodbye, and lets go of the server until it is needed
  // again.
  void close();
  // The same for good: other settings have taken its place, and calls that are still running must
  // not be the ones that wait for its end.
  void retire();

 private:
  using ServerPtr = std::shared_ptr<RemoteServer>;
  struct Question;
  // How often something was cleared or replaced, as far as this process knows.
  struct Changes {
    std::uint64_t clears = 0;
    std::uint64_t replacements = 0;
    std::uint64_t of_directory = 0;  // other processes' ones, too
  };

  Changes changes(RemoteServer& server);
  std::uint64_t removals_of_directory();
  // Whether what was found under these marks may still be kept; then `before` is what is so now.
  // Asks the server where the directory says that somebody removed something. No: it does not
  // answer by the deadline.
  bool still_holds(const std::string& scope, const remote::Generations::Current& marks,
                   remote::Client::Clock::time_point deadline, Changes& before);

  // Null where there is none, or it is left alone.
  ServerPtr server();
  ServerPtr open_server() MODCACHE_REQUIRES(mutex_);
  // The same for who does not mind that it is left alone.
  ServerPtr server_in_any_state();
  void report(const Status& failure, const char* during);
  void on_change(const Status& change);
  void on_written(std::size_t writes) override;
  void on_dropped(std::size_t writes, const Status& failure) override;

  void note_replacement() { replacements_.fetch_add(1, std::memory_order_acq_rel); }
  bool ask(RemoteServer& server, Question& question, std::chrono::milliseconds timeout);
  std::optional<FoundRows> rows_of(RemoteServer& server, const Keys& keys, const Question& question,
                                   Access access,
                                   std::optional<remote::Generations::Current>& current);
  void count_broken(const Status& broken);
  bool is_of(const remote::Record& record, const store::EntryId& id,
             const remote::Generations::Current& current) const;
  void remove(RemoteServer& server, const Digest128& address);
  remote::WriteBehind::Write write_of(EntryToWrite to_write, const EntryPtr& entry,
                                      bool replaces) const;

  const Settings settings_;
  const std::string shown_address_;
  const ValueFormat& format_;
  Stats& stats_;
  const ConnectRemote connect_;

  // Grows whenever a value proves wrong, or another one takes its place.
  std::atomic<std::uint64_t> replacements_{0};

  Mutex mutex_;
  std::weak_ptr<DiskTier> directory_ MODCACHE_GUARDED_BY(mutex_);
  ServerPtr server_ MODCACHE_GUARDED_BY(mutex_);
  remote::Client::Clock::time_point try_again_at_ MODCACHE_GUARDED_BY(mutex_){};
  bool is_retired_ MODCACHE_GUARDED_BY(mutex_) = false;
  std::uint64_t fork_registration_;
};

}  // namespace modcache::cache
