// SPDX-License-Identifier: Apache-2.0
//
// The count of removals, which tells a process that holds entries in memory when one was cleared or
// replaced. Its upper half is random and differs for each control page and pack. Counts of two
// sources must not be compared, since their sequences are unrelated.
#pragma once

#include <cstdint>

#include "base/random.h"
#include "store/entry/entry_id.h"

namespace modcache::store {

inline constexpr int kSourceShift = 32;
inline std::uint64_t first_removals() { return random_number() << kSourceShift | 1; }
inline bool are_of_one_source(std::uint64_t removals, std::uint64_t other) {
  return removals >> kSourceShift == other >> kSourceShift;
}

// A moment in the life of a directory or pack. A result that was computed since then is stored only
// if no clear that covers it came in between.
struct Moment {
  std::uint64_t source = 0;  // the upper half of the count of removals
  std::uint64_t clears = 0;
  Sequence sequence = 0;  // the last one that was taken
};

}  // namespace modcache::store
