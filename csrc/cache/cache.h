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
#include "cache/batch.h"
#include "cache/conflict_watch.h"
#include "cache/context.h"
#include "cache/disk_tier.h"
#include "cache/input_match.h"
#include "cache/memory_tier.h"
#include "cache/mode.h"
#include "cache/place.h"
#include "cache/read_ahead.h"
#include "cache/settings.h"
#include "cache/single_flight.h"
#include "cache/stats.h"
#include "cache/value.h"
#include "store/control/mode_page.h"

namespace modcache::cache {

struct Request {
  ContextPtr context;
  std::string_view key;
  std::string_view signature;          // of this call's input; empty: matches any entry
  const InputSource* input = nullptr;  // its values; null: only the signature is known
  std::size_t row = 0;                 // of `input`

  store::EntryId id() const { return {*context, key}; }
};

// What all sessions of a process share. The referents must outlive them.
struct Shared {
  const ValueFormat& format;
  SingleFlight& flights;
  Stats& stats;
  Places& places;
  ReadAhead& read_ahead;
  ConflictWatch& conflicts;
};

// The settings and tiers that one call uses from its start to its end, however often `configure`
// changes them meanwhile.
class Session {
 public:
  Session(Settings settings, std::shared_ptr<MemoryTier> memory, std::shared_ptr<DiskTier> disk,
          const Shared& shared);

  const Settings& settings() const { return settings_; }
  // Where this scope's values lie in memory.
  Place place_of(const std::string& scope) const { return places_.of(scope); }

  // The entry, counted as a hit. Null: a miss, which the caller counts once it knows that no rule
  // forbade caching; the caller runs the module and, if `may_write`, hands the result to store().
  // `lead` is then what keeps other threads waiting for that result; it is empty where nobody
  // should wait. Waits while another thread runs this key.
  // `is_conflict` is set where the miss is an entry of another input: the result replaces it.
  EntryPtr lookup(const Request& request, bool may_write, SingleFlight::Lead& lead,
                  bool* is_conflict = nullptr);

  // The same for what is in memory, matches and is `wanted`, else null: nothing waits, and nothing
  // but a hit is counted.
  EntryPtr recall(const Request& request, bool (*wanted)(const Entry&));

  // The keys of this scope go on coming with other inputs: what its runs give is not worth keeping.
  bool has_stopped_storing(const std::string& scope) {
    return conflicts_.has_stopped_storing(scope);
  }
  // Keys of one batch came with different inputs: counted, and warned about once. The row that is
  // asked with has another input than an earlier row of the same key.
  void note_conflict_in_batch(const Request& request, std::size_t rows);
  // Whether the input of this call is to be compared with samples.
  bool compares_input(const std::string& scope, const InputSource* input);

  // What an entry that is computed from this input keeps of it, whatever `match` says, so that a
  // later setting finds it; nothing where that is costly and not asked for.
  InputSample sample_to_keep(const InputSource& input, std::size_t row) const;

  // Keeps the entry, replacing what the key led to. False: it was not worth it, since its run was
  // shorter than `min_run_us` and it replaces nothing.
  // `replaces`: the caller knows that it takes the place of another value, which must go even where
  // the directory has no room for this one.
  bool store(const Request& request, EntryPtr entry, bool replaces = false);

  // Many rows at once (batch.h). Hits are counted as lookup() does, and as there the caller counts
  // the misses. Nothing waits here. Rows found on disk are not copied into the memory tier: the
  // page cache holds them once for all workers of a machine. Those of a scope whose place is a
  // device are brought there in the background, as long as nothing has to leave for them.
  BatchFound lookup_all(const BatchRequest& request, bool may_write);

  // Row i of `found` cannot be used after all: its hit is taken back and it is missing. A row of
  // the disk proved broken when it was read, so it is counted and dropped as well; one from memory
  // only does not fit, and both tiers keep what they have. A row that is missing stays so.
  void refuse(const BatchRequest& request, BatchFound& found, std::size_t i, const Status& broken,
              bool may_write);

  // The right to run the missing rows that nobody else runs. Does not wait.
  BatchLead lead_rows(const BatchRequest& request, const BatchFound& found);
  // Looks up again rows that this thread leads: `look_again` said that a run ended before it took
  // the lead. Whoever waits for the lead looks them up, too, if any is there now.
  BatchFound lookup_led(const BatchRequest& request, SingleFlight::Lead& lead);
  // Waits until nobody runs these rows any more, for a bounded time, and not in a thread that leads
  // any itself: give up first what lead_rows() gave. True: look them up again.
  bool wait_for(const BatchRequest& request, const std::vector<std::size_t>& rows);

  // Keeps entries[i] for keys[i], as store() does. Returns how many were kept.
  std::size_t store_all(const ContextPtr& context, const std::vector<std::string_view>& keys,
                        const std::vector<EntryPtr>& entries, bool replaces = false);

  // Sets is_there[i] for the keys that memory or the directory has, and asks for those that only
  // the directory has to be brought into memory (read_ahead.h). Waits for no reading of values.
  // REQUIRES: distinct keys, and as many of is_there.
  void prefetch(const ContextPtr& context, Form form, const std::vector<std::string_view>& keys,
                std::vector<bool>& is_there);

  // The entry, where there is one that matches. Neither counts hits nor waits, nor keeps in memory
  // what was read from disk; an entry of another input is a conflict.
  EntryPtr peek(const Request& request);

  // Neither counts nor waits, and reads no value.
  bool contains(const Request& request);
  // What a lookup would find, a mismatch included. Neither counts, waits nor drops anything.
  std::optional<Sighting> look(const Request& request);

  // Grows whenever any process removes something from the directory.
  std::uint64_t removals() { return disk_->removals(); }

  // What the directory keeps besides entries (store/notes.h), as far as `mode` allows. Counts
  // neither hits nor misses.
  std::optional<std::string> find_note(std::string_view about, Mode mode);
  void keep_note(std::string_view about, std::string_view text, Mode mode);

 private:
  friend class Cache;

  struct Found {
    EntryPtr entry;
    Counter counter = Counter::kHitsMemory;
  };
  Found find(const Digest128& address, const Request& request, bool may_write);
  EntryPtr find_and_count(const Digest128& address, const Request& request, bool may_write,
                          bool* is_conflict);
  EntryPtr find_in_memory(const Digest128& address, const Request& request,
                          MemoryTier::OnMiss on_miss);
  // Counts a conflict.
  bool accepts(const Request& request, const Entry& entry);
  bool matches(const Request& request, std::string_view signature, std::string_view sample) const {
    return match_.fits_signature(request.signature, signature) &&
           match_.fits_sample(request.input, request.row, sample);
  }
  // The request without its input where that is not looked at.
  Request asked(const Request& request);
  BatchRequest asked(const BatchRequest& request);
  void note_conflict(const Request& request, std::string_view signature, std::int64_t stored_at_us);
  static void warn_of_conflict(const Request& request, std::string_view signature);
  // By no tier.
  void count_not_kept(std::int64_t entries, std::uint64_t largest_bytes);
  static DiskTier::Access access(bool may_write) {
    return may_write ? DiskTier::Access::kWrite : DiskTier::Access::kRead;
  }

  // session_batch.cpp
  std::size_t store_each(const ContextPtr& context, const std::vector<std::string_view>& keys,
                         const std::vector<EntryPtr>& entries, bool replaces);
  void drop_expired(const BatchRequest& request, const std::vector<Digest128>& addresses,
                    std::vector<MemoryTier::Held>& held);
  void find_all_in_memory(const BatchRequest& request, BatchFound& found,
                          std::vector<bool>& is_settled);
  void refuse_outdated(const BatchRequest& request, const std::vector<Digest128>& addresses,
                       std::vector<MemoryTier::Held>& held);
  void take_from_disk(const BatchRequest& request, const std::vector<std::size_t>& rows,
                      BatchFound& found);
  void count_hits(const std::string& scope, Counter counter, std::int64_t hits,
                  std::int64_t saved_us);
  void bring(ReadAhead::Request request);
  EntryPtr moved_to_place(const std::string& scope, EntryPtr entry) const;
  static std::vector<Digest128> addresses_of_rows(const BatchRequest& request,
                                                  const std::vector<std::size_t>& rows);

  Settings settings_;
  const InputMatch match_;
  std::shared_ptr<MemoryTier> memory_;
  std::shared_ptr<DiskTier> disk_;
  const ValueFormat& format_;
  SingleFlight& flights_;
  Stats& stats_;
  Places& places_;
  ReadAhead& read_ahead_;
  ConflictWatch& conflicts_;
};

using SessionPtr = std::shared_ptr<Session>;

class Cache {
 public:
  // The one of this process. `format` reads values back; given once, by the first caller.
  static Cache& instance();
  static void set_value_format(const ValueFormat& format);

  // `format` and `file_system`, on which the directory lies, must outlive it.
  explicit Cache(const ValueFormat& format, fs::FileSystem& file_system = fs::posix_file_system());
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
  // All counters, and the entries and bytes of each tier, by name.
  std::map<std::string, std::int64_t> stats();
  void reset_stats() { stats_.reset(); }

  // What was stored before is safe when this returns, or an error was counted and logged.
  void flush();
  enum class Tier { kAll, kMemory, kDisk };
  // Removes entries of the namespace that is set; all of the directory's where nothing narrows and
  // no namespace is set. Returns how many are gone: 0, with a log line, where the mode forbids to
  // write, since then none is removed (Tier::kMemory aside, which needs no permission).
  std::int64_t clear(store::ClearFilter filter, Tier tier);

  // From now on nothing is held in memory, until `memory` is configured anew. What is held is left
  // as it lies: in a forked worker freeing it would copy the pages that it shares with its parent.
  // Without a directory (`disk` is 0) memory is all there is, and stays.
  void forgo_memory();

  // Where the memory tier holds the values of this very scope, from now on and of those that it
  // holds. They count in the one budget of memory, wherever they lie.
  void place(const std::string& scope, const Place& place);

  // Returns when what was asked to be read ahead is in memory, or was given up.
  void wait_until_read_ahead() { read_ahead_.wait_until_idle(); }

  // For the end of the process: ends the reading ahead, and commits what is queued.
  void close();

 private:
  static constexpr int kModeUnknown = -1;

  Shared shared() { return {format_, flights_, stats_, places_, read_ahead_, conflicts_}; }
  SessionPtr session_locked() MODCACHE_REQUIRES(mutex_);
  // `replaced` is let go of after the lock: closing a directory takes time.
  Status apply_locked(const Options& options, SessionPtr& replaced) MODCACHE_REQUIRES(mutex_);
  bool is_given_locked(const std::string& option) MODCACHE_REQUIRES(mutex_);
  Mode mode_from_settings();
  store::ModePage& mode_page_of_settings();
  void use_mode_page(const Settings& settings) MODCACHE_REQUIRES(mutex_);

  const ValueFormat& format_;
  fs::FileSystem& file_system_;
  Stats stats_;
  SingleFlight flights_;
  Places places_;
  ConflictWatch conflicts_;
  Mutex mutex_;
  SessionPtr session_ MODCACHE_GUARDED_BY(mutex_);
  std::set<std::string> given_ MODCACHE_GUARDED_BY(mutex_);  // by configure() or set_mode()
  std::atomic<int> mode_{kModeUnknown};
  // One for each directory that was ever configured: calls may be asking the one before.
  std::map<std::pair<std::string, store::ReadVia>, std::unique_ptr<store::ModePage>> mode_pages_
      MODCACHE_GUARDED_BY(mutex_);
  std::atomic<store::ModePage*> mode_page_{nullptr};
  ReadAhead read_ahead_;
  std::uint64_t fork_ticket_;
};

}  // namespace modcache::cache
