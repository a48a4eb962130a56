// SPDX-License-Identifier: Apache-2.0
//
// Cache: what a call goes through, without knowing modules or tensors.
//
//     session = cache.session();                  one directory and one set of settings per call
//     session->lookup(request, may_write, lead)   memory, then disk; else the right to run
//     if (session->store(request, entry))         hands a result to every tier
//         lead.stored()                           those who wait will find it
//
// No function here fails or throws for a cache's reason: at worst a lookup misses and a store is
// dropped, counted in `errors`. Everything may be called from any thread and in forked children.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "cache/conflict_watch.h"
#include "cache/mode.h"
#include "cache/place.h"
#include "cache/read_ahead.h"
#include "cache/session.h"
#include "cache/settings.h"
#include "cache/single_flight.h"
#include "cache/stats.h"
#include "cache/tiers.h"
#include "cache/value.h"
#include "store/control/mode_page.h"
#include "store/counters/directory_counters.h"

namespace modcache::cache {

class Cache {
 public:
  // The one of this process. `format` reads values back; given once, by the first caller.
  static Cache& instance();
  static void set_value_format(const ValueFormat& format);

  // `format` and `file_system`, on which the directory lies, must outlive it. `connect_remote` is
  // how it gets at the server that option `remote` names.
  explicit Cache(const ValueFormat& format, fs::FileSystem& file_system = fs::posix_file_system(),
                 ConnectRemote connect_remote = connect_by_library);
  ~Cache();
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  // Settings come from the environment at the first use. Touches no file.
  SessionPtr session();

  // kInvalidArgument names what was given and what is valid; nothing has changed then.
  Status configure(const Options& options);
  // The same for settings that come with a model: options that is_given() stay as they are. What
  // this sets may be set again.
  Status configure_unset(const Options& options);
  // Whether whoever runs this process chose the option: by configure(), set_mode() or the
  // environment.
  bool is_given(const std::string& option);
  // All options in force; `mode` is the process's level.
  Options settings();

  // The effective mode of the calling thread: what all levels leave. Costs three atomic loads and
  // three thread-local ones. The first question opens the directory's control page, unless process
  // and thread leave nothing: then no file is touched.
  Mode mode() {
    const Mode own = combine(process_mode(), thread_mode());
    return own == Mode::kOff ? own : combine(own, directory_mode());
  }
  // The process's level.
  Mode process_mode() {
    const int known = mode_.load(std::memory_order_relaxed);
    return known == kModeUnknown ? mode_from_settings() : static_cast<Mode>(known);
  }
  // The directory's level; the next call of every process sees it.
  Mode directory_mode() {
    store::ModePage* const page = mode_page_.load(std::memory_order_acquire);
    return mode_of((page != nullptr ? *page : mode_page_of_settings()).mode());
  }
  // The process's level; the next call of every thread sees it.
  void set_mode(Mode mode);

  Stats& counters() { return stats_; }
  // Null: option `remote` names no server.
  std::shared_ptr<RemoteTier> remote();
  // Returns what this process counted, as text for Prometheus (metrics.h).
  std::string metrics();
  // The payload bytes of each scope in the directory or pack. Reads the whole index. Empty where
  // nothing can be read, and in mode kOff.
  std::map<std::string, std::int64_t> bytes_by_scope();
  // All counters, and the entries and bytes of each tier, by name.
  std::map<std::string, std::int64_t> stats();
  void reset_stats() { stats_.reset(); }

  // Returns once everything stored before is safe, or an error was counted and logged.
  void flush();
  enum class Tier { kAll, kMemory, kDisk, kRemote };
  // Removes entries of the namespace that is set; all of the directory's where nothing narrows and
  // no namespace is set. Returns how many are gone: 0, with a log line, where the mode forbids to
  // write, since then none is removed (Tier::kMemory aside, which needs no permission).
  std::int64_t clear(store::ClearFilter filter, Tier tier);

  // From now on nothing is held in memory, until `memory` is configured anew. What is held is left
  // as it lies: in a forked worker freeing it would copy the pages that it shares with its parent.
  // Without a directory (`disk` is 0) memory is all there is, and stays.
  void disable_memory_tier();

  // Where the memory tier holds the values of this very scope, from now on and of those that it
  // holds. They count in the one budget of memory, wherever they lie.
  void place(const std::string& scope, const Place& place);

  // Returns when what was asked to be read ahead is in memory, or was given up.
  void wait_until_read_ahead() { read_ahead_.wait_until_idle(); }

  // For the end of the process: ends the reading ahead, and commits what is queued.
  void close();

 private:
  static constexpr int kModeUnknown = -1;

  Shared shared() MODCACHE_REQUIRES(mutex_) {
    return {flights_, stats_, places_, read_ahead_, conflicts_, seen_, verified_, run_times_};
  }
  TierParts tier_parts(const Settings& settings) MODCACHE_REQUIRES(mutex_) {
    return {format_, stats_, places_, file_system_, counters_of(settings), connect_remote_};
  }
  void keep_waiting_counts(Session& session);
  SessionPtr session_locked() MODCACHE_REQUIRES(mutex_);
  // `replaced` is let go of after the lock: closing a directory takes time.
  Status apply_locked(const Options& options, SessionPtr& replaced) MODCACHE_REQUIRES(mutex_);
  void retire_remote_of(Session& replaced);
  void forget_seen(Admission admission) MODCACHE_REQUIRES(mutex_);
  bool is_given_locked(const std::string& option) MODCACHE_REQUIRES(mutex_);
  Mode mode_from_settings();
  store::ModePage& mode_page_of_settings();
  // The directory of these settings is the one in use: its mode is asked, and it counts along.
  void use_directory(const Settings& settings) MODCACHE_REQUIRES(mutex_);
  store::DirectoryCounters* counters_of(const Settings& settings) MODCACHE_REQUIRES(mutex_);

  RunTimes run_times_;  // lies on cache lines of its own
  const ValueFormat& format_;
  fs::FileSystem& file_system_;
  const ConnectRemote connect_remote_;
  Mutex mutex_;
  // The session may count until it is gone, so all that it counts with comes before it.
  std::atomic<int> mode_{kModeUnknown};
  // One for each directory that was ever configured: calls may be asking the one before.
  std::map<std::pair<std::string, store::ReadVia>, std::unique_ptr<store::ModePage>> mode_pages_
      MODCACHE_GUARDED_BY(mutex_);
  std::atomic<store::ModePage*> mode_page_{nullptr};
  // The same for what counts in a directory.
  std::map<std::string, std::unique_ptr<store::DirectoryCounters>> directory_counters_
      MODCACHE_GUARDED_BY(mutex_);
  Stats stats_{[this] { return may_write(mode()); }};
  SingleFlight flights_;
  Places places_;
  ConflictWatch conflicts_;
  VerifyWatch verified_;
  std::shared_ptr<policy::SeenFilter> seen_ MODCACHE_GUARDED_BY(mutex_);
  SessionPtr session_ MODCACHE_GUARDED_BY(mutex_);
  std::set<std::string> given_ MODCACHE_GUARDED_BY(mutex_);  // by configure() or set_mode()
  ReadAhead read_ahead_;
  std::uint64_t fork_registration_;
};

}  // namespace modcache::cache
