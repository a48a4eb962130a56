// SPDX-License-Identifier: Apache-2.0
//
// Policy: decides which entries a full tier keeps. It knows nothing of keys, files or tensors: a
// tier gives it hashes of entries and, for each entry, 8 bytes of Usage that the tier stores.
//
// A policy orders entries by rank; the tier decides when to evict and how much. The memory tier
// compares a few entries at a time, the store compares all of them at once.
//
// Thread-safe. State that several processes share lies in memory of the caller's: numbers that any
// process may have left half written. So they are hints, they are bounds-checked, and they are
// never a reason to fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace modcache::policy {

enum class Kind { kAuto, kLru, kS3Fifo, kKeep };

std::string_view kind_name(Kind kind);

// Counts the lookups and stores of a tier. It wraps around, so only differences mean anything.
using Tick = std::uint32_t;

// The history of one entry's use, which the tier stores. Only the policy interprets it, but for
// `of_holder`, which belongs to the tier.
struct Usage {
  Tick used_at = 0;
  std::uint8_t uses = 0;
  std::uint8_t state = 0;
  std::uint16_t of_holder = 0;
};
static_assert(sizeof(Usage) == 8);

class Policy {
 public:
  virtual ~Policy() = default;

  // Records a lookup, whether or not the tier had the entry. `hash` is uniformly distributed.
  virtual void saw(std::uint64_t hash, bool was_found, Tick now) = 0;

  // Tells how many entries the tier holds, and about how many it has room for (0: not yet known).
  virtual void measured(std::uint64_t entries, std::uint64_t room_entries) = 0;

  // Returns whether a new entry may push others out of a full tier. If not, it is not stored.
  virtual bool admits(std::uint64_t hash, Tick now) = 0;

  // Return the usage of an entry that is new, that was found, or that eviction considered and kept.
  // The last two leave `of_holder` as it is.
  virtual Usage inserted(std::uint64_t hash, Tick now) = 0;
  virtual Usage used(Usage usage, Tick now) const = 0;
  virtual Usage spared(Usage usage, Tick now) const = 0;

  // Entries with smaller ranks leave first. Only ranks of one moment may be compared.
  virtual std::uint32_t rank(Usage usage, Tick now) const = 0;

  // Records that an entry left to make room.
  virtual void evicted(std::uint64_t hash, Usage usage, Tick now) = 0;
};

// The size of the state that a policy keeps besides the entries' usage. All zeros is a valid start.
inline constexpr std::size_t kSharedStateBytes = 1 << 20;

// `shared_state` is null, for a state of the policy's own, or kSharedStateBytes of 64-byte aligned
// memory that outlive the policy; several processes may map it.
std::unique_ptr<Policy> make_policy(Kind kind, void* shared_state = nullptr);

}  // namespace modcache::policy
