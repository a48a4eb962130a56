// SPDX-License-Identifier: Apache-2.0
//
// Session: the settings and tiers that one call uses from its start to its end, however often
// `configure` changes them meanwhile.
//
// There is one way through the tiers: a batch of keys goes from the nearest tier to the farthest
// (lookup_all), and a single key is a batch of one. No function here fails or throws for a cache's
// reason: at worst a lookup misses and a store is dropped, counted in `errors`. Everything may be
// called from any thread and in forked children.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/batch.h"
#include "cache/conflict_watch.h"
#include "cache/context.h"
#include "cache/input_match.h"
#include "cache/mode.h"
#include "cache/place.h"
#include "cache/read_ahead.h"
#include "cache/remaining_keys.h"
#include "cache/run_times.h"
#include "cache/settings.h"
#include "cache/single_flight.h"
#include "cache/stats.h"
#include "cache/tiers.h"
#include "cache/value.h"
#include "cache/verify_watch.h"
#include "policy/frequency_sketch.h"

namespace modcache::cache {

struct Request {
  ContextPtr context;
  std::string_view key;
  std::string_view signature;          // of this call's input; empty: matches any entry
  const InputSource* input = nullptr;  // its values; null: only the signature is known
  std::size_t row = 0;                 // of `input`

  // Hashes the address: a call asks for it once.
  store::EntryId id() const { return {*context, key}; }
};

// The parts that all sessions of a process share. The referents must outlive them.
struct Shared {
  SingleFlight& flights;
  Stats& stats;
  Places& places;
  ReadAhead& read_ahead;
  ConflictWatch& conflicts;
  std::shared_ptr<policy::SeenFilter> seen;  // null: admission=all
  VerifyWatch& verified;
  RunTimes& run_times;
};

class Session {
 public:
  Session(Settings settings, Tiers tiers, const Shared& shared);

  // A single key is a batch of one. Borrowed from `request`.
  static BatchRequest batch_of(const Request& request);

  const Settings& settings() const { return settings_; }
  // Where this scope's values lie in memory.
  Place place_of(const std::string& scope) const { return places_.of(scope); }

  // Returns whether calls of this scope bypass the cache, because results that were compared with
  // its entries differed (verify_watch.h). Then counts `keys` as bypassed. Call it once for each
  // call, before its first lookup.
  bool bypasses(const std::string& scope, std::size_t keys);
  bool is_switched_off(const std::string& scope) { return verified_.is_switched_off(scope); }

  // Returns whether the result of a run that missed is to be stored: always with admission=all;
  // with admission=second if the key was asked for before, or if other threads wait for the result
  // that this lead is for. Records the key, so call it once for each run.
  bool admits(const Request& request, const SingleFlight::Lead& lead);
  // Sets whether all results of the calling thread are stored whatever `admission` is, for a pass
  // over data that is made to store it. Returns the previous value.
  static bool set_admits_all(bool admits_all);

  // The outcome of a look-up that returned no entry.
  struct Missed {
    bool is_conflict = false;  // an entry of another input: the result replaces it
    bool is_verified = false;  // an entry that the result is to be compared with (verify_share)
  };
  // The entry, counted as a hit. Null: a miss, which the caller counts once it knows that no rule
  // forbade caching; the caller runs the module and, if `may_write`, hands the result to store().
  // `lead` is then what keeps other threads waiting for that result; it is empty where nobody
  // should wait. Waits while another thread runs this key.
  // `missed`: null for callers that cannot run anything. No hit of theirs is to be compared.
  EntryPtr lookup(const Request& request, bool may_write, SingleFlight::Lead& lead,
                  Missed* missed = nullptr);

  // The same for callers that wait for nobody, and whose result nobody waits for.
  EntryPtr lookup_at_once(const Request& request, bool may_write);

  // The same for what is in memory, matches and is `wanted`, else null: nothing waits, and nothing
  // but a hit is counted.
  EntryPtr find_in_memory(const Request& request, bool may_write, bool (*wanted)(const Entry&));
  // The same for what only the directory has, and brings it into memory. `wanted` is asked before
  // the value is read. Damage is counted, too.
  EntryPtr find_on_disk(const Request& request, bool may_write,
                        bool (*wanted)(std::string_view value_header));

  // Notes that the stored value was compared with a fresh result, as verify_share wants it, and
  // what differs. A value that differs is dropped from every tier, as far as that is allowed.
  void note_verified(const Request& request, const std::string& who, std::string_view difference,
                     bool may_write);
  // A run of this scope took so long.
  void note_run(const std::string& scope, std::int64_t run_us);

  // The keys of this scope go on coming with other inputs: what its runs give is not worth keeping.
  bool has_stopped_storing(const std::string& scope) {
    return conflicts_.has_stopped_storing(scope);
  }
  // Keys of one batch came with different inputs: counted, and warned about once. The row that is
  // asked with has another input than an earlier row of the same key.
  void note_conflict_in_batch(const Request& request, std::size_t rows);
  // Returns whether the input of this call is to be compared with samples. Asked once for a call:
  // of costly inputs a share is looked at.
  bool compares_input(const std::string& scope, const InputSource* input);

  // Returns the sample that an entry computed from this input keeps. It is kept whatever `match`
  // says, so that a later setting finds it; but it is empty where sampling is costly and nobody
  // asked for it.
  InputSample sample_to_keep(const InputSource& input, std::size_t row) const;

  // Keeps the entry, replacing what the key led to. False: it was not worth it, since its run was
  // shorter than `min_run_us` and it replaces nothing.
  // `replaces`: the caller knows that it takes the place of another value, which must go even where
  // the directory has no room for this one.
  bool store(const Request& request, const EntryPtr& entry, bool replaces = false);

  // Many rows at once (batch.h). Hits are counted as lookup() does, and as there the caller counts
  // the misses. Nothing waits here. Rows found on disk are not copied into the memory tier: the
  // page cache holds them once for all workers of a machine. Those of a scope whose place is a
  // device are brought there in the background, as long as nothing has to leave for them.
  BatchFound lookup_all(const BatchRequest& request, bool may_write);

  // The same if every key has an entry that matches, else nothing: then nothing but damage was
  // counted. take_back_all() undoes the counting where the rows cannot be used after all.
  std::optional<BatchFound> find_hits(const BatchRequest& request, bool may_write);
  void take_back_all(const BatchRequest& request, BatchFound& found);

  // Row i of `found` cannot be used after all: its hit is taken back and it is missing. A row of
  // the disk proved broken when it was read, so it is counted and dropped as well; one from memory
  // only does not fit, and both tiers keep what they have. A row that is missing stays so.
  void refuse(const BatchRequest& request, BatchFound& found, std::size_t i, const Status& broken,
              bool may_write);

  // Row i of `found` is an entry of an input of another shape, which cannot be used though `match`
  // does not compare shapes: its hit is taken back, and it is a conflict.
  void refuse_as_conflict(const BatchRequest& request, BatchFound& found, std::size_t i);

  // Makes row i of `found` missing, as this call cannot use it: its hit is taken back, and the
  // tiers keep the entry.
  void make_missing(const BatchRequest& request, BatchFound& found, std::size_t i) {
    if (!found.is_missing(i)) take_back(*request.context, found, i);
  }

  // The right to run the missing rows that nobody else runs. Does not wait.
  BatchLead lead_rows(const BatchFound& found);
  // Looks up again rows that this thread leads: `look_again` said that a run ended before it took
  // the lead. Whoever waits for the lead looks them up, too, if any is there now.
  BatchFound lookup_led(const BatchRequest& request, SingleFlight::Lead& lead);
  // Waits until nobody runs these rows any more, for a bounded time, and not in a thread that leads
  // any itself: give up first what lead_rows() gave. The result says whether to look them up again.
  SingleFlight::Waited wait_for(const BatchRequest& request, const std::vector<std::size_t>& rows);

  // Keeps entries[i] for keys[i], as store() does. Returns how many were kept.
  std::size_t store_all(const ContextPtr& context, std::span<const std::string_view> keys,
                        std::span<const EntryPtr> entries, bool replaces = false);

  // Sets is_there[i] for the keys that memory or the directory has, and asks for those that only
  // the directory has to be brought into memory (read_ahead.h). Waits for no reading of values.
  // REQUIRES: distinct keys, and as many of is_there.
  void prefetch(const ContextPtr& context, Form form, std::span<const std::string_view> keys,
                std::vector<bool>& is_there);

  // The entry, where there is one that matches. Neither counts hits nor waits, nor keeps in memory
  // what was read from disk; an entry of another input is a conflict.
  EntryPtr peek(const Request& request);

  // Returns whether a lookup would find a value. It neither counts nor waits, and reads no value.
  bool contains(const Request& request);
  // The same, of the tiers that are not far.
  bool is_near(const Request& request) { return is_nearer_than(first_far(), request.id()); }
  // Returns what a lookup would find, a mismatch included. It neither counts nor waits, and drops
  // nothing.
  std::optional<EntryInfo> look(const Request& request);

  // Grows whenever any process removes something from the directory.
  std::uint64_t removals() { return tiers_.disk->removals(); }

  // The directory's notes (store/directory/notes.h), as far as `mode` allows. They count neither as
  // hits nor as misses.
  std::optional<std::string> find_note(std::string_view about, Mode mode);
  void keep_note(std::string_view about, std::string_view text, Mode mode);

 private:
  friend class Cache;

  static Access access(bool may_write) { return may_write ? Access::kWrite : Access::kRead; }

  // The request without its input where that is not to be compared, which is decided here.
  Request as_compared(const Request& given);
  // kAtOnce: hits and conflicts are counted as they are found, and the policies learn of misses.
  enum class Counting { kAtOnce, kNone };
  struct Terms {
    Access access;
    Counting counting;
  };
  // kNear: tiers that are far are not asked.
  enum class Reach { kAll, kNear };
  BatchFound find_all(const BatchRequest& request, bool may_write,
                      Counting counting = Counting::kAtOnce, Reach reach = Reach::kAll);
  void keep_nearer(const BatchRequest& request, std::size_t tier, const RemainingKeys& asked,
                   const FoundRows& rows, BatchFound& found);
  // Takes back what the tiers before that one kept although it does not hold any more.
  void take_back_nearer(std::size_t tier, const TierKeys& keys, std::span<const Kept> kept);
  void bring_to_device(const BatchRequest& request, const BatchFound& found);
  void bring(ReadAhead::Request request);
  // Takes over the answer of one tier as hits and conflicts of the batch.
  void settle(const BatchRequest& request, std::size_t tier, const RemainingKeys& asked,
              TierFound& answer, Terms terms, BatchFound& found);
  void settle_entries(const BatchRequest& request, std::size_t tier, const RemainingKeys& asked,
                      TierFound& answer, Counting counting, BatchFound& found);
  void settle_rows(const BatchRequest& request, std::size_t tier, const RemainingKeys& asked,
                   TierFound& answer, Terms terms, BatchFound& found);
  // Entry i of `found`, which is brought into the tiers that are nearer than the one that has it.
  // Null: it is missing, or proves broken and is missing from now on.
  EntryPtr take(const BatchRequest& request, BatchFound& found, std::size_t i, bool may_write);
  static bool may_bring_into(std::size_t tier, bool may_write);
  // Returns whether a tier nearer than `tier` may keep an entry of this size.
  bool has_nearer_place_for(std::uint64_t size_bytes, std::size_t tier, bool may_write) const;
  // The place of the nearest tier that is far; as many as there are tiers, where none is.
  std::size_t first_far() const;
  // Returns whether one of the tiers before that one has an entry of the key.
  bool is_nearer_than(std::size_t tier, const store::EntryId& id) const;

  bool matches(const Request& request, std::string_view signature, std::string_view sample) const {
    return match_.fits_signature(request.signature, signature) &&
           match_.fits_sample(request.input, request.row, sample);
  }
  void count_hits(const store::Context& context, const HitCounts& counts, bool may_write);
  std::int64_t run_us_of(const BatchFound& found, std::size_t i) const;
  std::int64_t bytes_of(const BatchFound& found, std::size_t i) const;
  // Row i is no hit after all.
  void take_back(const store::Context& context, BatchFound& found, std::size_t i);

  // Returns whether none of so many plain hits is to be compared.
  bool spares(std::size_t hits) const {
    return settings_.verify_share == 0 || HitDraw::spares(settings_.verify_share, hits);
  }
  // Takes back the hits that are to be compared.
  void draw_verified(const BatchRequest& request, BatchFound& found);

  std::size_t store_those_worth_it(const TierKeys& keys, std::span<const EntryPtr> entries,
                                   bool replaces);
  void store_in_tiers(const TierKeys& keys, std::span<const EntryPtr> entries, bool replaces);
  void count_kept(const TierKeys& keys, std::span<const EntryPtr> entries,
                  std::span<const Kept> kept);
  void note_conflict(const Request& request, std::string_view signature, std::int64_t stored_at_us);

  Settings settings_;
  const InputMatch match_;
  const Tiers tiers_;
  SingleFlight& flights_;
  Stats& stats_;
  Places& places_;
  ReadAhead& read_ahead_;
  ConflictWatch& conflicts_;
  const std::shared_ptr<policy::SeenFilter> seen_;
  VerifyWatch& verified_;
  RunTimes& run_times_;
};

using SessionPtr = std::shared_ptr<Session>;

}  // namespace modcache::cache
