// SPDX-License-Identifier: Apache-2.0
#include "cache/input_match.h"

#include <gtest/gtest.h>

#include <string>

namespace modcache::cache {
namespace {

// Rows that hold one number each; row 100 and those after it cannot be measured.
class Numbers final : public InputSource {
 public:
  bool measure(std::size_t row, MeasuredInput& measured) const override {
    if (row >= 100) return false;
    measured.set_exact(row);
    return true;
  }
  bool is_costly() const override { return false; }
};

std::string sample_of(std::size_t row) {
  MeasuredInput measured;
  (void)Numbers().measure(row, measured);
  return std::string(measured.sample().bytes());
}

TEST(InputMatchTest, signatures_must_be_equal_as_far_as_the_setting_says) {
  const auto fits = [](Match how, const char* stored) {
    return InputMatch(how).fits_signature("float32[2,3]", stored);
  };
  for (const Match how : {Match::kInput, Match::kNone}) {
    EXPECT_TRUE(fits(how, "float32[2,3]"));
    EXPECT_TRUE(fits(how, "")) << "an empty one matches any";
    EXPECT_TRUE(InputMatch(how).fits_signature("", "int64[1]"));
  }
  EXPECT_FALSE(fits(Match::kInput, "float32[4,3]"));
  EXPECT_FALSE(fits(Match::kInput, "int64[2,3]"));
  EXPECT_TRUE(fits(Match::kNone, "int64[7]"));
}

TEST(InputMatchTest, values_are_compared_under_input_alone) {
  const Numbers numbers;
  EXPECT_TRUE(InputMatch(Match::kInput).fits_sample(&numbers, 5, sample_of(5)));
  EXPECT_FALSE(InputMatch(Match::kInput).fits_sample(&numbers, 5, sample_of(6)));
  EXPECT_TRUE(InputMatch(Match::kNone).fits_sample(&numbers, 5, sample_of(6)));
  EXPECT_TRUE(InputMatch(Match::kInput).compares_samples());
  EXPECT_FALSE(InputMatch(Match::kNone).compares_samples());
}

TEST(InputMatchTest, what_nothing_can_be_told_of_matches) {
  const Numbers numbers;
  const InputMatch match(Match::kInput);
  EXPECT_TRUE(match.fits_sample(nullptr, 0, sample_of(6)));
  EXPECT_TRUE(match.fits_sample(&numbers, 5, ""));
  EXPECT_TRUE(match.fits_sample(&numbers, 100, sample_of(6)));
}

}  // namespace
}  // namespace modcache::cache
