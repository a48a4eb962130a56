// SPDX-License-Identifier: Apache-2.0
//
// SharedState: everything that a tier's policies remember besides the usage of entries. Numbers
// that any process may write at any time and leave half written.
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
  // Hashes below this are in the sample; 0: none is. Every lookup reads it.
  alignas(64) std::atomic<std::uint64_t> sample_end;
  std::atomic<std::uint32_t> sample_shift;
  std::atomic<std::uint32_t> way;
  // Counts of the sample; from time to time they are halved, so that older lookups count less.
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
