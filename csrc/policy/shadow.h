// SPDX-License-Identifier: Apache-2.0
//
// Shadow: estimates the hits of a tier that kept entries in one given way. It is such a tier
// without values, for a sample of the lookups, and smaller in the same proportion. It inserts each
// entry that it misses, as callers store what they had to compute. Any thread or process may call
// it at any time, on the same state: writes that overwrite each other only lose some evidence.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "policy/lru.h"
#include "policy/s3fifo.h"
#include "policy/stable.h"
#include "policy/way.h"

namespace modcache::policy {

struct ShadowState {
  static constexpr std::size_t kSlots = 2048;
  static constexpr std::size_t kGhosts = 2048;

  struct Slot {
    std::atomic<std::uint64_t> hash;  // 0: empty
    std::atomic<std::uint64_t> usage;
  };
  S3FifoState s3fifo;
  StableGateState gate;
  std::atomic<std::uint64_t> entries;
  std::atomic<std::uint64_t> random;
  std::array<GhostSlot, kGhosts> ghosts;
  std::array<Slot, kSlots> slots;
};

class Shadow {
 public:
  // Half of the slots should be free, since each hash may lie in few of them.
  static constexpr std::uint64_t kMostRoom = ShadowState::kSlots / 2;

  Shadow(ShadowState& state, Way way);

  // Returns whether the entry was there. REQUIRES: 0 < room_entries <= kMostRoom.
  bool find_or_insert(std::uint64_t hash, std::uint64_t room_entries, Tick now);
  void clear();
  // Corrects the number of entries, which is wrong after a process died or two counted at once.
  void recount();
  void set_horizon(Tick horizon) { s3fifo_.set_horizon(horizon); }

 private:
  using Slot = ShadowState::Slot;

  std::uint32_t rank(const Slot& slot, Tick now) const;
  void evict_one(Tick now);
  void evict(Slot& slot, Tick now);
  void insert(std::uint64_t hash, Tick now);
  std::uint64_t next_random();

  ShadowState& state_;
  S3Fifo s3fifo_;
  StableGate gate_;
  Lru lru_;
  const Way way_;
};

}  // namespace modcache::policy
