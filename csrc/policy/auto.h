// SPDX-License-Identifier: Apache-2.0
//
// Auto: an entry is replaced only by a key that is asked for more often. Each entry counts its uses
// up to 15, a sketch counts those of keys without an entry, and all counts are halved every ten
// times capacity lookups. A new key replaces the least often used of a few sampled entries if its
// count is larger by kMinLead. So on epochs over a dataset that does not fit, where all keys are
// equally frequent, the entries stay until they are asked for again.
//
// Entries that nobody uses any more give way. An entry counts as never used once it is older than
// entries usually become before they are used again: twice the average age, or five fourths of
// about the largest one. One of kOneIn new keys replaces such an entry whatever its own count is,
// because the first epoch over another dataset finds all keys once.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "policy/frequency_sketch.h"
#include "policy/policy.h"

namespace modcache::policy {

// AutoState: the numbers that the processes of a directory share. Any process may leave any of them
// half written.
struct AutoState {
  static constexpr std::size_t kMaxBuckets = 1 << 16;

  std::atomic<std::uint64_t> capacity;  // in entries; 0: unknown
  std::atomic<std::uint32_t> buckets;   // of `sketch` that are in use
  std::atomic<std::uint32_t> period;    // the number of halvings
  std::atomic<Tick> period_began_at;
  // The age of entries when they are used again, 256 per tick; 0: unknown.
  std::atomic<std::uint64_t> average_age;
  std::atomic<std::uint64_t> largest_age;  // recently
  alignas(64) std::array<FrequencySketch::Bucket, kMaxBuckets> sketch;
};
static_assert(sizeof(AutoState) <= kSharedStateBytes);

class Auto final : public Policy {
 public:
  static constexpr std::uint32_t kMinLead = 2;
  static constexpr std::uint64_t kLookupsPerPeriod = 10;  // times the capacity
  static constexpr std::uint64_t kMinPatience = 1;        // times the capacity
  static constexpr std::uint64_t kMaxPatience = 64;       // times the capacity
  static constexpr std::uint32_t kOneIn = 10;

  explicit Auto(void* shared_state);

  void saw(std::uint64_t hash, bool was_found) override;
  void set_capacity(std::uint64_t entries) override;
  bool may_replace(Usage victim, std::uint64_t hash, Tick now) override;
  Usage inserted(std::uint64_t hash, Tick now) override;
  Usage used(Usage usage, Tick now) const override;
  std::uint32_t rank(Usage usage, Tick now) const override;
  void evicted(std::uint64_t hash, Usage usage) override;

 private:
  FrequencySketch sketch() const;
  std::uint64_t capacity() const;
  std::uint8_t period() const;
  // Returns the count of the entry, halved and rounded up for each period since it was counted.
  std::uint32_t aged_count(Usage usage) const;
  // Returns the age at which an entry counts as never used.
  std::uint64_t patience() const;
  std::uint32_t frequency(Usage usage, Tick now) const;
  // Records that an entry of this age was used.
  void learn_age(Tick age, Tick now) const;
  // Begins a new period if it is time.
  void advance(Tick now);

  const std::shared_ptr<AutoState> state_;
};

}  // namespace modcache::policy
