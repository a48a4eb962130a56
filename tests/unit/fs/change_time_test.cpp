// SPDX-License-Identifier: Apache-2.0
#include "fs/change_time.h"

#include <gtest/gtest.h>

#include "base/clock.h"

namespace modcache::fs {
namespace {

constexpr std::int64_t kSecondNs = 1'000'000'000;

FileInfo changed_at(std::int64_t time_ns) {
  FileInfo info;
  info.changed_ns = time_ns;
  return info;
}

// The last second but so many, in whole milliseconds or not.
std::int64_t ago(std::int64_t seconds, std::int64_t rest_ns) {
  return (now_ns() / kSecondNs - seconds) * kSecondNs + rest_ns;
}

TEST(ChangeTimeTest, a_time_of_whole_milliseconds_may_be_of_a_file_system_with_long_ticks) {
  EXPECT_FALSE(has_short_ticks(changed_at(5 * kSecondNs)));
  EXPECT_TRUE(has_short_ticks(changed_at(5 * kSecondNs + 1)));
  EXPECT_EQ(tick_ns(changed_at(5 * kSecondNs + 1)), kShortTickNs);
  EXPECT_GT(tick_ns(changed_at(5 * kSecondNs)), 2 * kSecondNs);
}

TEST(ChangeTimeTest, is_settled_once_it_lies_more_than_a_tick_back) {
  EXPECT_TRUE(is_settled(changed_at(ago(2, 1))));
  EXPECT_FALSE(is_settled(changed_at(ago(2, 0)))) << "within a long tick";
  EXPECT_TRUE(is_settled(changed_at(ago(60, 0))));
  EXPECT_FALSE(is_settled(changed_at(now_ns() / 1000 * 1000 + 1)));
}

TEST(ChangeTimeTest, that_is_yet_to_come_is_not_settled) {
  EXPECT_FALSE(is_settled(changed_at(ago(-60, 1))));
}

}  // namespace
}  // namespace modcache::fs
