// SPDX-License-Identifier: Apache-2.0
#include "store/reclaim/dead_space_looks.h"

#include <gtest/gtest.h>

namespace modcache::store {
namespace {

constexpr std::int64_t kHourUs = 3'600'000'000;
constexpr std::int64_t kHourMs = 3'600'000;

TEST(DeadSpaceLooksTest, a_look_is_due_at_first_and_after_removals) {
  DeadSpaceLooks looks(0);
  EXPECT_TRUE(looks.is_due(7, 0));
  EXPECT_FALSE(looks.is_due(7, 100 * kHourMs)) << "nothing becomes too old";
  EXPECT_TRUE(looks.is_due(8, 100 * kHourMs));
  EXPECT_FALSE(looks.is_due(8, 100 * kHourMs));
}

TEST(DeadSpaceLooksTest, with_a_bound_of_age_one_is_due_now_and_then) {
  DeadSpaceLooks looks(kHourUs);
  EXPECT_TRUE(looks.is_due(0, 1000));
  EXPECT_FALSE(looks.is_due(0, 1000 + kHourMs / 16 - 1));
  EXPECT_TRUE(looks.is_due(0, 1000 + kHourMs / 16));
  EXPECT_FALSE(looks.is_due(0, 1000 + kHourMs / 16));
  EXPECT_TRUE(looks.is_due(1, 2000 + kHourMs / 16)) << "something was removed";
  EXPECT_FALSE(looks.is_due(1, 1000 + kHourMs / 8));
}

TEST(DeadSpaceLooksTest, however_short_ages_are_a_second_lies_between_two_looks) {
  DeadSpaceLooks looks(1'000'000);
  EXPECT_TRUE(looks.is_due(0, 5000));
  EXPECT_FALSE(looks.is_due(0, 5999));
  EXPECT_TRUE(looks.is_due(0, 6000));
}

}  // namespace
}  // namespace modcache::store
