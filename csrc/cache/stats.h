// SPDX-License-Identifier: Apache-2.0
//
// Counters of this process. Any thread may count; reading is a relaxed snapshot.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace modcache::cache {

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
  kKeyConflicts,    // a key that was stored for an input of another dtype or shape
  kVerifyDifferences,
  kEvicted,  // entries that a tier's budget pushed out of it
  // Results that the directory (without one: memory) did not take: full of what is rather kept, or
  // too large.
  kNotKept,
  kCorrupt,  // stored entries that failed a check; each was a miss
  kErrors,   // failures of the cache; no call failed for them
  kRunUs,    // time spent running modules on misses
  kSavedUs,  // what the hits' own runs had taken
  kCount,
};

// The name under which stats() shows a counter.
std::string_view counter_name(Counter counter);

class Stats {
 public:
  void add(Counter counter, std::int64_t amount = 1) {
    counters_[static_cast<std::size_t>(counter)].fetch_add(amount, std::memory_order_relaxed);
  }
  std::int64_t get(Counter counter) const {
    return counters_[static_cast<std::size_t>(counter)].load(std::memory_order_relaxed);
  }
  void reset();

 private:
  std::array<std::atomic<std::int64_t>, static_cast<std::size_t>(Counter::kCount)> counters_{};
};

}  // namespace modcache::cache
