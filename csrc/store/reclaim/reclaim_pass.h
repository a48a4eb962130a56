// SPDX-License-Identifier: Apache-2.0
//
// What one pass of making room is about, and has done so far; of directory_store_reclaim.cpp and
// directory_store_survey.cpp.
#pragma once

#include <cstdint>
#include <limits>

#include "store/directory_store.h"

namespace modcache::store {

inline constexpr std::uint64_t kAboveAllRanks = std::uint64_t{1} << 33;

struct DirectoryStore::Pass {
  std::uint64_t to_bytes = 0;
  // Writing what stays may not make the directory larger than this; 0: not known yet.
  std::uint64_t most_bytes = 0;
  std::int64_t expired_before_us = 0;
  // It ends when it gained so much, even if others wrote as much meanwhile.
  std::uint64_t wanted_bytes = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t gained_bytes = 0;
  std::uint64_t moved_bytes = 0;
  bool is_reached = false;
  // It keeps what is left of a segment once enough has gone of it. Otherwise all that is to leave
  // leaves: where new entries come all the time it would be the next to.
  bool spares_the_rest = false;
  // Of the segment that is being emptied: what is to go before it spares the rest, and what has.
  std::uint64_t enough_bytes = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t gone_bytes = 0;
  // What nobody lets go of is a reason to refuse puts rather than to take more.
  bool may_refuse = false;
  bool is_held = false;          // and was one, when it was looked at last
  std::uint64_t held_bytes = 0;  // of gone segments, when they were looked at last
  Evicted evicted;
  std::uint64_t rank = kAboveAllRanks;  // of those that stay, the least
};

}  // namespace modcache::store
