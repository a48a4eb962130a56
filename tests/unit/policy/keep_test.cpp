// SPDX-License-Identifier: Apache-2.0
#include "policy/keep.h"

#include <gtest/gtest.h>

namespace modcache::policy {
namespace {

TEST(KeepTest, a_full_tier_takes_nothing_new) {
  Keep keep;
  EXPECT_FALSE(keep.admits(1, 10));
}

TEST(KeepTest, a_budget_that_shrinks_pushes_out_the_newest_whatever_was_used) {
  Keep keep;
  const Usage first = keep.inserted(1, 10);
  const Usage second = keep.inserted(2, 11);
  EXPECT_LT(keep.rank(keep.used(second, 50), 51), keep.rank(first, 51));
}

TEST(KeepTest, leaves_the_holders_part_alone) {
  Keep keep;
  Usage usage = keep.inserted(1, 10);
  usage.of_holder = 77;
  EXPECT_EQ(keep.used(usage, 11).of_holder, 77);
  EXPECT_EQ(keep.spared(usage, 11).of_holder, 77);
}

}  // namespace
}  // namespace modcache::policy
