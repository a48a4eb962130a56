// SPDX-License-Identifier: Apache-2.0
//
// Which segments are worth emptying: pure functions over counts, without files.
//
// A segment comes back whole or not at all, and what is kept of it must be written anew. So the
// segments to take are those of which most is to go: dead space first, which costs nobody anything,
// then entries of low rank.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "store/segment/retired_segments.h"

namespace modcache::store {

// The bytes that must still go until a directory of `used_bytes` takes `to_bytes`. Segments that
// their readers are about to release count as gone. Segments that nobody releases take the place of
// entries, but of a quarter of `budget_bytes` at most: beyond that, evicting more would empty the
// directory without making it smaller (`is_held`). Budget 0: everything that is left is to go.
struct Excess {
  std::uint64_t bytes = 0;
  bool is_held = false;
};
Excess excess_over(std::uint64_t to_bytes, std::uint64_t used_bytes, const RetiredSegments& retired,
                   std::uint64_t budget_bytes);

// The bytes that emptying one segment would give back.
struct SegmentUse {
  std::uint64_t id = 0;
  std::uint64_t size_bytes = 0;      // of the file
  std::uint64_t live_bytes = 0;      // of records that the index leads to
  std::uint64_t kept_bytes = 0;      // of these, the ones whose rank spares them
  std::uint64_t first_sequence = 0;  // the smaller, the longer ago
};

// Returns the segments that are dead by a quarter or more, the most dead first.
std::vector<SegmentUse> with_dead_space(std::vector<SegmentUse> segments);
// Returns the bytes that emptying these segments would give back.
std::uint64_t dead_bytes(const std::vector<SegmentUse>& segments);

// All that give anything, the ones that give the largest share first, of equal ones the oldest.
std::vector<SegmentUse> by_gain(std::vector<SegmentUse> segments);

// Entries of low rank that together have about `wanted_bytes`: all with a smaller rank than this.
// `for_each` calls its argument with rank and size of every entry, and is called twice.
using RankedSizes = std::function<void(const std::function<void(std::uint32_t, std::uint64_t)>&)>;
std::uint64_t rank_above(const RankedSizes& for_each, std::uint64_t wanted_bytes);

}  // namespace modcache::store
