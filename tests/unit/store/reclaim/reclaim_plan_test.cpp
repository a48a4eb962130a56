// SPDX-License-Identifier: Apache-2.0
#include "store/reclaim/reclaim_plan.h"

#include <gtest/gtest.h>

#include <utility>

namespace modcache::store {
namespace {

TEST(ReclaimPlanTest, what_is_held_is_on_its_way_or_takes_the_place_of_entries_or_refuses_puts) {
  const auto excess = [](std::uint64_t used, std::uint64_t held, std::uint64_t leaving,
                         std::uint64_t budget) {
    RetiredSegments retired;
    retired.held_bytes = held;
    retired.leaving_bytes = leaving;
    const Excess found = excess_over(90, used, retired, budget);
    return std::pair(found.bytes, found.is_held);
  };
  EXPECT_EQ(excess(80, 0, 0, 100), std::pair(0ul, false));
  EXPECT_EQ(excess(98, 0, 0, 100), std::pair(8ul, false));
  EXPECT_EQ(excess(98, 50, 50, 100), std::pair(0ul, false));
  EXPECT_EQ(excess(98, 25, 0, 100), std::pair(8ul, false));
  EXPECT_EQ(excess(98, 26, 0, 100), std::pair(0ul, true));
  EXPECT_EQ(excess(130, 30, 0, 100), std::pair(10ul, true));
  EXPECT_EQ(excess(80, 30, 0, 100), std::pair(0ul, false));
  EXPECT_EQ(excess(98, 50, 0, 0), std::pair(8ul, false));  // it was asked for
}

}  // namespace
}  // namespace modcache::store
