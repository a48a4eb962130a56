// SPDX-License-Identifier: Apache-2.0
//
// SharedState: all that the policies of a tier remember besides what is kept with its entries.
// Plain numbers that any process may write at any time and leave half written.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "policy/policy.h"
#include "policy/reuse.h"
#include "policy/s3fifo.h"
#include "policy/shadow.h"
#include "policy/stable.h"
#include "policy/way.h"

namespace modcache::policy {

struct AutoState {
  // Hashes from here on are not in the sample; 0: none is. Read by every lookup.
  alignas(64) std::atomic<std::uint64_t> sample_end;
  std::atomic<std::uint32_t> sample_shift;
  std::atomic<std::uint32_t> way;
  // Of the sample, since the last time that older ones were made to count half.
  alignas(64) std::atomic<std::uint32_t> lookups;
  std::array<std::atomic<std::uint32_t>, kWays> found;
  StableGateState gate;
  std::array<ShadowState, kWays> shadows;
  ReuseState reuse;
};

struct SharedState {
  static constexpr std::size_t kGhosts = 1 << 16;

  S3FifoState s3fifo;
  AutoState automatic;
  std::array<GhostSlot, kGhosts> ghosts;
};
static_assert(sizeof(SharedState) <= kSharedStateBytes);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace modcache::policy
