// SPDX-License-Identifier: Apache-2.0
#include "cache/run_times.h"

#include <gtest/gtest.h>

#include <chrono>

namespace modcache::cache {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::int64_t us(std::chrono::microseconds time) { return time.count(); }

TEST(RunTimesTest, the_first_run_of_a_scope_is_waited_for_the_longest) {
  RunTimes times;
  EXPECT_EQ(times.patience("a"), RunTimes::kLongestPatience);
}

TEST(RunTimesTest, a_run_is_waited_for_twenty_times_as_long_as_usual_within_bounds) {
  RunTimes times;
  times.note("a", us(milliseconds(20)));
  EXPECT_EQ(times.patience("a"), RunTimes::kShortestPatience);
  times.note("b", us(milliseconds(200)));
  EXPECT_EQ(times.patience("b"), seconds(4));
  times.note("c", us(seconds(5)));
  EXPECT_EQ(times.patience("c"), RunTimes::kLongestPatience);
  times.note("d", us(std::chrono::hours(1'000'000)));
  EXPECT_EQ(times.patience("d"), RunTimes::kLongestPatience);
  times.note("e", 0);
  EXPECT_EQ(times.patience("e"), RunTimes::kShortestPatience);
}

TEST(RunTimesTest, the_longest_run_of_late_counts) {
  RunTimes times;
  times.note("a", us(milliseconds(1000)));
  for (int i = 0; i < 4; ++i) times.note("a", us(milliseconds(100)));
  EXPECT_GT(times.patience("a"), seconds(14));
  for (int i = 0; i < 100; ++i) times.note("a", us(milliseconds(100)));
  EXPECT_LT(times.patience("a"), seconds(3));
}

}  // namespace
}  // namespace modcache::cache
