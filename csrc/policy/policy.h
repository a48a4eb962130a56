// SPDX-License-Identifier: Apache-2.0
//
// Policy: decides which entries a full tier keeps. It does not know keys, files or tensors: a tier
// passes hashes of entries and stores 8 bytes of Usage with each entry.
//
// A policy orders entries by rank; the tier decides when to evict and how much. The memory tier
// compares a few sampled entries, the store ranks all of them at once.
//
// Thread-safe. State that several processes share lies in memory of the caller: numbers that any
// process may have left half written. So they are hints, they are bounds-checked, and they are
// never a reason to fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace modcache::policy {

enum class Kind { kAuto, kLru, kKeep };

// Returns the value of the setting `policy`.
std::string_view kind_name(Kind kind);

// A count of lookups (in memory, of stores too) by which a tier measures time. It wraps around, so
// only differences mean anything.
using Tick = std::uint32_t;

// The history of one entry's use, which the tier stores. Only the policy interprets it, except
// `of_holder`, which belongs to the tier.
struct Usage {
  Tick used_at = 0;
  std::uint8_t count = 0;   // of uses; Auto alone counts them
  std::uint8_t period = 0;  // in which it was counted
  std::uint16_t of_holder = 0;
};
static_assert(sizeof(Usage) == 8);

// Returns how many ticks ago the entry was used; 0 if another thread used it after `now` was read.
inline Tick age_of(Usage usage, Tick now) {
  constexpr Tick kMaxAhead = Tick{1} << 24;
  const Tick age = now - usage.used_at;
  return age > ~kMaxAhead ? 0 : age;
}

// The number of entries that a tier samples before it compares a new one with the lowest ranked.
inline constexpr std::size_t kSampledEntries = 8;

class Policy {
 public:
  virtual ~Policy() = default;

  // Records a lookup, whether or not the tier had the entry. `hash` is uniformly distributed.
  virtual void saw(std::uint64_t /*hash*/, bool /*was_found*/) {}
  // Sets how many entries the tier has room for (0: unknown).
  virtual void set_capacity(std::uint64_t /*entries*/) {}

  // Returns whether a new entry may take the place of `victim`, the lowest ranked of a sample from
  // a full tier. Otherwise the new entry is not stored.
  virtual bool may_replace(Usage victim, std::uint64_t hash, Tick now) = 0;

  // Returns the usage of a new entry.
  virtual Usage inserted(std::uint64_t hash, Tick now);
  // Returns the usage of an entry that was found. `of_holder` stays as it is.
  virtual Usage used(Usage usage, Tick now) const;
  // Returns the usage of an entry that eviction considered and retained. This keeps an old entry
  // old: without it the entry would look new once ticks have wrapped around.
  Usage retained(Usage usage, Tick now) const;

  // Entries with smaller ranks are evicted first. Only ranks of one moment may be compared.
  virtual std::uint32_t rank(Usage usage, Tick now) const = 0;

  // Records that an entry was evicted.
  virtual void evicted(std::uint64_t /*hash*/, Usage /*usage*/) {}
};

// The size of the state that a policy has besides the entries' usage. All zeros is a valid start.
inline constexpr std::size_t kSharedStateBytes = 1 << 20;

// `shared_state` is null, for a state of the policy's own, or kSharedStateBytes of 64-byte aligned
// memory that outlive the policy; several processes may map it.
std::unique_ptr<Policy> make_policy(Kind kind, void* shared_state = nullptr);

}  // namespace modcache::policy
