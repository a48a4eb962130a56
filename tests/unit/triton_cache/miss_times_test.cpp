// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

#include "triton_cache/response_cache.h"

namespace modcache::triton_cache {
namespace {

class MissTimesTest : public ::testing::Test {
 protected:
  // -1: not known.
  std::int64_t take_us(const std::string& key, std::int64_t now_us) {
    const auto missed = times_->take(key, now_us);
    return missed.has_value() ? missed->run_us : -1;
  }

  std::unique_ptr<MissTimes> times_ = std::make_unique<MissTimes>();
};

TEST_F(MissTimesTest, tells_once_how_long_ago_a_key_missed) {
  times_->note_miss("a", 1000);
  times_->note_miss("b", 1500);
  EXPECT_EQ(take_us("a", 4000), 3000);
  EXPECT_EQ(take_us("b", 4000), 2500);
  EXPECT_EQ(take_us("a", 5000), -1);
  EXPECT_EQ(take_us("never", 5000), -1);
}

TEST_F(MissTimesTest, a_clock_that_was_set_back_makes_no_negative_time) {
  times_->note_miss("a", 1000);
  EXPECT_EQ(take_us("a", 10), 0);
}

TEST_F(MissTimesTest, remembers_so_many_keys_and_gives_up_the_oldest) {
  constexpr int kMost = static_cast<int>(MissTimes::kMost);
  for (int i = 1; i <= kMost + 2; ++i) times_->note_miss(std::to_string(i), i);
  EXPECT_EQ(take_us("1", 1'000'000), -1);
  EXPECT_EQ(take_us("2", 1'000'000), -1);
  for (int i = 3; i <= kMost + 2; ++i) {
    EXPECT_EQ(take_us(std::to_string(i), 1'000'000), 1'000'000 - i);
  }
}

}  // namespace
}  // namespace modcache::triton_cache
