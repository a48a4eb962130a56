// SPDX-License-Identifier: Apache-2.0
//
// Counters of this process. Any thread may count; reading is a relaxed snapshot. Where the process
// may write to its directory, that counts along by scope and day (store/counters/), so that the
// numbers outlive the process.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <utility>

#include "cache/latency.h"
#include "store/counters/directory_counters.h"
#include "store/entry/entry_id.h"

namespace modcache::cache {

// Their numbers are in the files of directories: a new one goes to the end, before kCount.
enum class Counter : std::size_t {
  kHitsMemory,
  kHitsDisk,
  kHitsRemote,
  kMisses,          // keys that were looked up, not found, and run
  kStored,          // results that a tier took
  kBypassedOff,     // calls while the mode forbids reading and writing
  kBypassedGrad,    // results that require grad
  kBypassedImpure,  // results that are no function of state and input
  kBypassedType,    // values no tier can hold
  kKeyConflicts,    // a key that was stored for another input
  kVerifyDifferences,
  kEvicted,  // entries that a tier's budget pushed out of it
  // Results that the directory (without one: memory) did not take: full of what is rather kept, or
  // too large.
  kNotKept,
  kCorrupt,         // stored entries that failed a check; each was a miss
  kErrors,          // failures of the cache; no call failed for them
  kRunUs,           // time spent running modules on misses
  kSavedUs,         // what the hits' own runs had taken
  kHitBytes,        // of the values that were found
  kStoredBytes,     // of the values that a tier took
  kBypassedVerify,  // keys of a scope that was switched off, as its hits differed from fresh
                    // results
  kVerified,        // hits that were run and compared instead, for verify_share
  kRemoteStored,    // entries that the remote tier's server took
  kRemoteDropped,   // entries that were not written to it: no room in the queue, or it did not take
                    // them
  kBypassedRows,    // rows of batches that cannot be cached by row
  kBypassedIdentity,  // calls of a module that cannot be identified
  kCount,
};
static_assert(static_cast<std::size_t>(Counter::kCount) <= store::kMostCounters);

// The name under which people see a counter.
std::string_view counter_name(Counter counter);

// Returns whether stats() shows it. Sums of bytes are for metrics and reports alone: beside
// bytes_memory and bytes_disk, which are sizes, they would be taken for such.
constexpr bool is_in_stats(Counter counter) {
  return counter != Counter::kHitBytes && counter != Counter::kStoredBytes;
}

// The hits of one lookup, and their sums.
struct HitCounts {
  Counter tier = Counter::kHitsMemory;
  std::int64_t hits = 0;
  std::int64_t saved_us = 0;
  std::int64_t bytes = 0;
};

class Stats {
 public:
  // The directory counts along while `may_keep` says so for the calling thread; none: never.
  explicit Stats(std::function<bool()> may_keep = nullptr) : may_keep_(std::move(may_keep)) {}

  using Addition = store::DirectoryCounters::Addition;
  static Addition addition(Counter counter, std::int64_t amount) {
    return {static_cast<std::size_t>(counter), amount};
  }

  // Counts what belongs to this scope; to none where it is empty.
  void add(std::string_view scope, Counter counter, std::int64_t amount = 1);
  // Counts several at once, which takes less than one after the other.
  void add(std::string_view scope, std::span<const Addition> additions);
  void add(Counter counter, std::int64_t amount = 1) { add({}, counter, amount); }
  // Counts for a context, without a search for its scope if the thread counted for it before.
  // `may_keep`: the mode of the call allows writing to the directory.
  void add(const store::Context& context, std::span<const Addition> additions, bool may_keep);
  void add_hits(const store::Context& context, const HitCounts& counts, bool may_keep);

  std::int64_t get(Counter counter) const {
    return counters_[static_cast<std::size_t>(counter)].load(std::memory_order_relaxed);
  }
  // get() starts over; the directory's counters and metrics go on.
  void reset();
  // Everything that this process ever counted. Never less than an earlier answer, also while
  // reset() runs.
  std::int64_t ever(Counter counter) const;

  Latencies& latencies() { return latencies_; }
  const Latencies& latencies() const { return latencies_; }

  // Returns whether counts wait for the directory to be opened.
  bool have_to_wait() const {
    auto* const kept = directory_.load(std::memory_order_acquire);
    return kept != nullptr && kept->has_waiting_counts();
  }

  // The directory in use; null: none keeps counters. It must live as long as this object.
  void keep_in(store::DirectoryCounters* directory) {
    directory_.store(directory, std::memory_order_release);
  }

 private:
  static constexpr auto kCounters = static_cast<std::size_t>(Counter::kCount);
  using Numbers = std::array<std::atomic<std::int64_t>, kCounters>;

  void add_here(std::span<const Addition> additions);
  store::DirectoryCounters* directory() const;

  Numbers counters_{};
  Numbers before_reset_{};
  mutable Numbers shown_{};
  Latencies latencies_;
  const std::function<bool()> may_keep_;
  std::atomic<store::DirectoryCounters*> directory_{nullptr};
};

}  // namespace modcache::cache
