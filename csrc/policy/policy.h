// SPDX-License-Identifier: Apache-2.0
//
// Policy: which entries a full tier keeps. It knows nothing of keys, files or tensors: a tier gives
// it hashes of entries and, for each entry, 8 bytes of Usage that the tier keeps.
//
// A policy orders entries by rank; who evicts, and by how much, is the tier's business. The memory
// tier compares a few entries at a time, the store all of them at once.
//
// Thread-safe. State that several processes share lies in memory that the caller gave: plain
// numbers that any process may have left half written, so they are hints, bounds-checked, and never
// a reason to fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

namespace modcache::policy {

enum class Kind { kAuto, kLru, kS3Fifo, kKeep };

std::optional<Kind> parse_kind(std::string_view text);
std::string_view kind_name(Kind kind);

// Counts the lookups and stores of a tier; wraps around, so only differences mean anything.
using Tick = std::uint32_t;

// What a tier keeps of one entry's use. The policy alone interprets it; `of_holder` is the tier's.
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

  // A lookup, whether or not the tier had the entry. `hash` is uniformly distributed.
  virtual void saw(std::uint64_t hash, bool was_found, Tick now) = 0;

  // How many entries the tier holds, and about how many it has room for (0: not yet known).
  virtual void measured(std::uint64_t entries, std::uint64_t room_entries) = 0;

  // Whether a new entry may push others out of a full tier. False: it is not kept.
  virtual bool admits(std::uint64_t hash, Tick now) = 0;

  // Of an entry that is new, that was found, and that was judged and stays (`of_holder` is kept).
  virtual Usage inserted(std::uint64_t hash, Tick now) = 0;
  virtual Usage used(Usage usage, Tick now) const = 0;
  virtual Usage spared(Usage usage, Tick now) const = 0;

  // Entries with smaller ranks leave first. Only ranks of one moment may be compared.
  virtual std::uint32_t rank(Usage usage, Tick now) const = 0;

  // An entry left to make room.
  virtual void evicted(std::uint64_t hash, Usage usage, Tick now) = 0;
};

// Where a policy keeps what is not an entry's; zeros are a valid beginning.
inline constexpr std::size_t kSharedStateBytes = 1 << 20;

// `shared_state`: kSharedStateBytes that outlive the policy, 64-byte aligned, perhaps mapped by
// several processes; null: the policy has its own.
std::unique_ptr<Policy> make_policy(Kind kind, void* shared_state = nullptr);

}  // namespace modcache::policy
