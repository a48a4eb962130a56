// SPDX-License-Identifier: Apache-2.0
//
// Cache: entries by context and key, in memory, on disk and on a server, without knowing modules or
// tensors. It owns its settings, tiers, policy, runs in flight and counters. A process has a
// default cache and may have others.
//
//     Keys keys(context, key);
//     Found found = cache.lookup(keys, options);      memory, then disk, then the server
//     ... runs what is missing and led by this thread ...
//     cache.store(keys, entries, options);            in every tier
//     found.lead.stored();                            threads that wait will find it
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
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "cache/conflict_watch.h"
#include "cache/found.h"
#include "cache/generations.h"
#include "cache/keys.h"
#include "cache/mode.h"
#include "cache/place.h"
#include "cache/read_ahead.h"
#include "cache/run_times.h"
#include "cache/settings.h"
#include "cache/single_flight.h"
#include "cache/stats.h"
#include "cache/tiers.h"
#include "cache/value.h"
#include "cache/verify_watch.h"
#include "policy/frequency_sketch.h"
#include "store/control/mode_page.h"
#include "store/counters/directory_counters.h"

namespace modcache::cache {

// Settings, and the tiers that were made for them.
struct Configuration {
  Settings settings;
  Tiers tiers;
  std::shared_ptr<policy::SeenFilter> seen;  // null: admission=all
};
using ConfigurationPtr = std::shared_ptr<const Configuration>;

struct LookupOptions {
  bool may_write = false;  // the mode allows it
  // The values of whole entries are read, and copied into the tiers before the one that has them.
  // Otherwise values outside of memory stay rows, which the caller reads.
  bool reads_values = false;
  bool will_run = false;    // the caller runs what is missing, and other threads may wait for it
  bool may_sample = false;  // the caller compares sampled hits with fresh results (verify_share)
  // Counts, warns of and copies nothing, and is no lookup to the policy where nothing is found.
  bool is_silent = false;
  bool asks_server = true;
  bool notes_misses = true;  // conflicts are counted, and misses are lookups to the policy
};

class Cache;
using CachePtr = std::shared_ptr<Cache>;

// Sets what reads values back in the caches of this process. Call it once, before all others.
void set_value_format(const ValueFormat& format);
// The default cache of this process.
const CachePtr& default_cache();
// Makes another one. kInvalidArgument says what is wrong with the options.
Result<CachePtr> make_cache(const std::map<std::string, std::string>& options);
// Those of make_cache() that are still used, and the default.
std::vector<CachePtr> all_caches();

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): tables have cache lines of their own
class Cache {
 public:
  enum class Role {
    kDefault,  // the default of the process: settings start from the environment
    kOther,    // settings start from the defaults, and the process's mode restricts its own
    // As in a process of its own: settings start from the environment, and the store of its
    // directory is not shared with other caches of this process.
    kSeparate,
  };
  // `format` and `file_system`, on which the directory lies, must outlive it. `connect_remote` is
  // how it gets at the server that option `remote` names.
  explicit Cache(const ValueFormat& format, fs::FileSystem& file_system = fs::posix_file_system(),
                 ConnectRemote connect_remote = connect_by_library, Role role = Role::kSeparate);
  ~Cache();
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  // The settings and tiers in force. Settings come from the environment at the first use. Touches
  // no file.
  ConfigurationPtr configuration();

  // Looks the keys up in memory, on disk and on the server. An entry of another input is a
  // conflict, and a miss. Conflicts are counted here, hits by count_hits() once they were used, and
  // misses by the caller once it knows that no rule forbade caching. Waits for no other thread.
  Found lookup(const Keys& keys, const LookupOptions& options);
  // Counts what was found as hits.
  void count_hits(const Keys& keys, const Found& found, bool may_write);
  // Waits until no other thread runs these keys, for a bounded time, and not in a thread that leads
  // any itself: give up the lead first. The result says whether to look them up again.
  SingleFlight::Waited wait_for(const Keys& keys);

  // Returns the moment at which a run begins, for StoreOptions::since.
  Generation begin_run(const Configuration& configuration, const std::string& scope,
                       bool may_write);
  // Returns whether this process or the directory was cleared of key i since a run of it began.
  bool was_cleared(const Keys& keys, std::size_t i, const Generation& since);
  Generation begin_run(const Keys& keys, bool may_write) {
    return begin_run(*keys.configuration, keys.context()->scope, may_write);
  }
  // Stores entries[i] for key i in every tier, the farthest first. Returns how many were stored:
  // not those whose run was shorter than `min_run_us` and which replace nothing, and none whose
  // scope was cleared since the run began.
  std::size_t store(const Keys& keys, std::span<const EntryPtr> entries,
                    const StoreOptions& options = {});
  // Returns whether the result of a run that missed key i is to be stored: always with
  // admission=all; with admission=second if the key was looked up before, or if other threads wait
  // for the result of this lead. Records the key, so call it once for each run.
  static bool admits(const Keys& keys, std::size_t i, const SingleFlight::Lead& lead);
  // Sets whether all results of the calling thread are stored whatever `admission` is, for a pass
  // over data that is made to store it. Returns the previous value.
  static bool set_admits_all(bool admits_all);

  // Key i of `found` cannot be used after all, and is missing. A row that proved broken is counted,
  // and dropped if the mode allows; one from memory only does not fit, and stays.
  void refuse(const Keys& keys, Found& found, std::size_t i, const Status& broken, bool may_write);
  // Key i is an entry of an input of another shape, which cannot be used though `match` does not
  // compare shapes: it is missing, and a conflict.
  void refuse_as_conflict(const Keys& keys, Found& found, std::size_t i);
  // Key i is not used by this call; the tiers retain the entry.
  static void skip(Found& found, std::size_t i) { found.items_[i].state = Found::State::kMissing; }

  // The stored value of a key, to be compared with a fresh result; null: there is none. Counts no
  // hit.
  EntryPtr find_to_compare(const Keys& keys);
  // Returns what is known of each key without reading values. Counts and drops nothing.
  std::vector<std::optional<EntryInfo>> inspect(const Keys& keys, bool asks_server = true);
  bool contains(const Keys& key) { return inspect(key).front().has_value(); }
  // Sets is_there[i] for the keys that memory or the directory has, and asks for those that only
  // the directory has to be brought into memory (read_ahead.h). Waits for no reading of values.
  void prefetch(const Keys& keys, std::vector<bool>& is_there);

  // Returns whether calls of this scope bypass the cache, because sampled hits differed from fresh
  // results (verify_watch.h). Then counts `keys` as bypassed. Call it once for each call.
  bool bypasses(const std::string& scope, std::size_t keys);
  bool is_switched_off(const std::string& scope) { return verified_.is_switched_off(scope); }
  // A sampled hit of key i was compared with a fresh result; `difference` is empty where they
  // agree. A value that differs is dropped from every tier, as far as that is allowed.
  void note_compared(const Keys& keys, std::size_t i, const std::string& who,
                     std::string_view difference, bool may_write);
  // A run of this scope took so long.
  void note_run(const std::string& scope, std::int64_t run_us) { run_times_.note(scope, run_us); }

  // Returns whether the input of this call is to be compared with samples. Asked once for a call:
  // of costly inputs a share is sampled.
  bool compares_input(const Configuration& configuration, const std::string& scope,
                      const InputSource& input);
  // Returns the sample that an entry computed from this input has. It is stored whatever `match`
  // says, so that a later setting finds it; but it is empty where sampling is costly and not
  // wanted.
  static InputSample sample_to_store(const Configuration& configuration, const InputSource& input,
                                     std::size_t row);
  // The keys of this scope keep coming with other inputs: its results are not worth storing.
  bool has_stopped_storing(const std::string& scope) {
    return conflicts_.has_stopped_storing(scope);
  }
  // Key i came with other inputs in `rows` further rows of its batch: counted, and warned about
  // once.
  void note_conflict_in_batch(const Keys& keys, std::size_t i, std::size_t rows);

  // The memory in which this scope's values are stored.
  Place place_of(const std::string& scope) { return places_.of(scope); }

  // Grows whenever any process removes something from the directory.
  std::uint64_t removals() { return configuration()->tiers.disk->removals(); }
  // The directory's notes (store/directory/notes.h), as far as `mode` allows. They count neither as
  // hits nor as misses.
  std::optional<std::string> find_note(std::string_view about, Mode mode);
  void keep_note(std::string_view about, std::string_view text, Mode mode);

  // kInvalidArgument names what was given and what is valid; nothing has changed then.
  Status configure(const Options& options);
  // The same for settings that come with a model: options that is_given() stay as they are. What
  // this sets may be set again.
  Status configure_unset(const Options& options);
  // Whether the user of this process chose the option: by configure(), set_mode() or the
  // environment.
  bool is_given(const std::string& option);
  // All options in force; `mode` is the process's level.
  Options settings();

  // The effective mode of the calling thread: what all levels leave. Costs three atomic loads and
  // three thread-local ones. The first call opens the directory's control page, unless process and
  // thread leave nothing: then no file is touched.
  Mode mode() {
    const Mode own = combine(process_mode(), thread_mode());
    return own == Mode::kOff ? own : combine(own, directory_mode());
  }
  // The process's level, and that of this cache.
  Mode process_mode() {
    const int known = mode_.load(std::memory_order_relaxed);
    const Mode own = known == kModeUnknown ? mode_from_settings() : static_cast<Mode>(known);
    return role_ != Role::kOther ? own : combine(own, default_cache()->process_mode());
  }
  // The directory's level; the next call of every process sees it.
  Mode directory_mode() {
    store::ModePage* const page = mode_page_.load(std::memory_order_acquire);
    return mode_of((page != nullptr ? *page : mode_page_of_settings()).mode());
  }
  // The process's level, for the default cache; otherwise that of this cache. The next call of
  // every thread sees it.
  void set_mode(Mode mode);

  Stats& counters() { return stats_; }
  // Null: option `remote` names no server.
  std::shared_ptr<RemoteTier> remote() { return configuration()->tiers.remote; }
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
  // no namespace is set. Results of calls that began before are not stored. Returns how many are
  // gone: 0, with a log line, where the mode forbids to write, since then none is removed
  // (Tier::kMemory aside, which needs no permission).
  std::int64_t clear(store::ClearFilter filter, Tier tier);

  // From now on nothing is stored in memory, until `memory` is configured again. What is there
  // stays where it is: in a forked worker freeing it would copy the pages that it shares with its
  // parent. Without a directory (`disk` is 0) memory is all there is, and stays.
  void disable_memory_tier();

  // Where the memory tier has the values of this very scope, from now on and of those that it has.
  // They count in the one budget of memory, wherever they are.
  void place(const std::string& scope, const Place& place);

  // Returns when what was asked to be read ahead is in memory, or was given up.
  void wait_until_read_ahead() { read_ahead_.wait_until_idle(); }

  // For the end of the process: ends the reading ahead, and commits what is queued.
  void close();

 private:
  static constexpr int kModeUnknown = -1;

  // The lookup (cache.cpp).
  void search(const Keys& keys, const LookupOptions& options, Found& found);
  void check_inputs(const Keys& keys, std::size_t tier, const LookupOptions& options, Found& found);
  bool is_same_input(const Keys& keys, std::size_t i, std::string_view signature,
                     std::string_view sample) const;
  void enter_runs(const Keys& keys, const LookupOptions& options, std::uint64_t completed_runs,
                  Found& found);
  static void sample_hits(const Keys& keys, Found& found);
  void count_conflict(const Keys& keys, std::size_t i, std::string_view signature,
                      std::int64_t stored_at_us);
  std::size_t store_in_tiers(const Keys& keys, std::span<const EntryPtr> entries,
                             const StoreOptions& options);
  // Returns how many were stored, or refused by the policy.
  std::size_t count_stored(const Keys& keys, std::span<const EntryPtr> entries,
                           const OneOrMany<Kept>& kept);

  // Copies into nearer tiers (promotion.cpp).
  static void read_values(const Keys& keys, const LookupOptions& options, Found& found);
  static bool is_outdated(const Keys& keys, std::size_t i, store::Sequence stored_at,
                          const Found& found);
  static void store_rows_nearer(const Keys& keys, std::size_t tier, Found& found);
  static void take_back_nearer(std::size_t tier, const Keys& keys, const OneOrMany<Kept>& kept);
  void bring_to_device(const Keys& keys, const Found& found);

  // kInvalidArgument: another cache of this process uses the directory in another way.
  Result<TierParts> tier_parts(const Settings& settings) MODCACHE_REQUIRES(mutex_);
  void keep_waiting_counts(const Configuration& configuration);
  ConfigurationPtr configuration_locked() MODCACHE_REQUIRES(mutex_);
  // The settings before any of configure(): for the default cache those of the environment.
  Settings first_settings() const;
  Status begin_with(Settings settings) MODCACHE_REQUIRES(mutex_);
  void use(Settings settings, Tiers tiers, std::shared_ptr<policy::SeenFilter> seen)
      MODCACHE_REQUIRES(mutex_);
  // `replaced` is destroyed after the lock: closing a directory takes time.
  Status apply_locked(const Options& options, ConfigurationPtr& replaced) MODCACHE_REQUIRES(mutex_);
  void retire_remote_of(const ConfigurationPtr& replaced);
  bool is_given_locked(const std::string& option) MODCACHE_REQUIRES(mutex_);
  Mode mode_from_settings();
  store::ModePage& mode_page_of_settings();
  // The directory of these settings is the one in use: its mode counts, and it counts along.
  void use_directory(const Settings& settings) MODCACHE_REQUIRES(mutex_);
  store::DirectoryCounters* counters_of(const Settings& settings) MODCACHE_REQUIRES(mutex_);

  RunTimes run_times_;  // is on cache lines of its own
  const ValueFormat& format_;
  fs::FileSystem& file_system_;
  const ConnectRemote connect_remote_;
  const Role role_;
  Mutex mutex_;
  // The tiers may count until they are gone, so all that they count with comes before them.
  std::atomic<int> mode_{kModeUnknown};
  // One for each directory that was ever configured: calls may be using the one before.
  std::map<std::pair<std::string, store::ReadVia>, std::unique_ptr<store::ModePage>> mode_pages_
      MODCACHE_GUARDED_BY(mutex_);
  std::atomic<store::ModePage*> mode_page_{nullptr};
  // The same for what counts in a directory.
  std::map<std::string, std::unique_ptr<store::DirectoryCounters>> directory_counters_
      MODCACHE_GUARDED_BY(mutex_);
  Stats stats_{[this] { return may_write(mode()); }};
  SingleFlight in_flight_;
  Generations generations_;
  Places places_;
  ConflictWatch conflicts_;
  VerifyWatch verified_;
  ConfigurationPtr configuration_ MODCACHE_GUARDED_BY(mutex_);
  std::set<std::string> given_ MODCACHE_GUARDED_BY(mutex_);  // by configure() or set_mode()
  ReadAhead read_ahead_;
  std::uint64_t fork_registration_;
};

}  // namespace modcache::cache
