// SPDX-License-Identifier: Apache-2.0
#include "command_line/units.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "base/utf8.h"

namespace modcache::command_line {
namespace {

constexpr std::int64_t kSecond = 1'000'000;
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

TEST(UnitsTest, counts_have_their_thousands_apart) {
  EXPECT_EQ(count_text(0), "0");
  EXPECT_EQ(count_text(999), "999");
  EXPECT_EQ(count_text(1000), "1,000");
  EXPECT_EQ(count_text(10'000'000), "10,000,000");
  EXPECT_EQ(count_text(-1234), "-1,234");
  EXPECT_EQ(count_text(-123), "-123");
}

TEST(UnitsTest, sizes_have_three_digits_and_a_unit) {
  EXPECT_EQ(size_text(0), "0 B");
  EXPECT_EQ(size_text(999), "999 B");
  EXPECT_EQ(size_text(1000), "1.00 kB");
  EXPECT_EQ(size_text(12'345), "12.3 kB");
  EXPECT_EQ(size_text(999'499), "999 kB");
  EXPECT_EQ(size_text(999'500), "1.00 MB");
  EXPECT_EQ(size_text(100'000'000'000), "100 GB");
  EXPECT_EQ(size_text(kMost), "9.22 EB");
  EXPECT_EQ(size_text(-1500), "-1.50 kB");
}

TEST(UnitsTest, times_of_runs_have_a_unit_or_two) {
  EXPECT_EQ(duration_text(0), "0 us");
  EXPECT_EQ(duration_text(999), "999 us");
  EXPECT_EQ(duration_text(1500), "1.50 ms");
  EXPECT_EQ(duration_text(59 * kSecond), "59.0 s");
  EXPECT_EQ(duration_text(60 * kSecond), "1 min");
  EXPECT_EQ(duration_text(125 * kSecond), "2 min 5 s");
  EXPECT_EQ(duration_text(3600 * kSecond + 60 * kSecond), "1 h 1 min");
  EXPECT_EQ(duration_text(25LL * 3600 * kSecond), "1 d 1 h");
  EXPECT_EQ(duration_text(-1), "-");
}

TEST(UnitsTest, times_of_day_are_those_that_a_calendar_has) {
  EXPECT_EQ(utc_time_text(1'000'000'000'000'001), "2001-09-09T01:46:40.000001Z");
  EXPECT_EQ(local_time_text(1'000'000'000'000'000).size(), 19U);
  for (const std::int64_t none : {std::int64_t{0}, std::int64_t{-1}, kMost}) {
    EXPECT_EQ(utc_time_text(none), "") << none;
    EXPECT_EQ(local_time_text(none), "-") << none;
  }
}

TEST(UnitsTest, an_age_is_a_number_and_a_unit) {
  EXPECT_EQ(parse_age_us("90").value(), 90 * kSecond);
  EXPECT_EQ(parse_age_us("15 min").value(), 900 * kSecond);
  EXPECT_EQ(parse_age_us("36h").value(), 36LL * 3600 * kSecond);
  EXPECT_EQ(parse_age_us("2w").value(), 14LL * 24 * 3600 * kSecond);
  for (const char* bad : {"", "h", "-1", "1.5h", "3 months", "1 h 5 min", "99999999999999999999",
                          "9999999999999w", " 5"}) {
    EXPECT_EQ(parse_age_us(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
}

TEST(UnitsTest, utf8_is_told_from_other_bytes) {
  for (const char* good : {"", "a", "\xc3\xa9", "\xf0\x9f\x98\x80"}) EXPECT_TRUE(is_utf8(good));
  for (const char* bad : {"\xff", "\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x80"}) {
    EXPECT_FALSE(is_utf8(bad));
  }
}

}  // namespace
}  // namespace modcache::command_line
