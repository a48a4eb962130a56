// SPDX-License-Identifier: Apache-2.0
//
// ReclaimPass: what one pass of making room is to reach, and what it has done so far.
#pragma once

#include <cstdint>
#include <limits>

#include "store/entry/totals.h"

namespace modcache::store {

inline constexpr std::uint64_t kAboveAllRanks = std::uint64_t{1} << 33;

// Which entries a pass keeps. kHighRanks: those of rank ReclaimPass::rank and above.
enum class Sparing { kAllLive, kHighRanks, kNone };

struct ReclaimPass {
  std::uint64_t to_bytes = 0;
  // The records that stay are written anew, and may not make the directory larger than this; 0:
  // not known yet.
  std::uint64_t most_bytes = 0;
  std::int64_t expired_before_us = 0;
  Sparing sparing = Sparing::kAllLive;
  // The pass ends when it gained so much, even if others wrote as much meanwhile.
  std::uint64_t wanted_bytes = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t gained_bytes = 0;
  std::uint64_t moved_bytes = 0;
  bool is_reached = false;
  // True: once enough has gone of a segment, the rest of its entries stay. False: all that may
  // leave leaves, since where new entries come all the time it would be the next to leave.
  bool spares_the_rest = false;
  // The segment that is being emptied: how much is to go before the rest stays, and how much went.
  std::uint64_t enough_bytes = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t dead_bytes = 0;
  // Where readers hold segments that are gone, puts may be refused rather than more be taken.
  bool may_refuse = false;
  bool is_held = false;          // such segments were a reason to refuse at the last look
  std::uint64_t held_bytes = 0;  // their size at the last look
  Evicted evicted;
  std::uint64_t rank = kAboveAllRanks;  // the least that stays
};

}  // namespace modcache::store
