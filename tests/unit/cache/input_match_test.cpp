// SPDX-License-Identifier: Apache-2.0
#include "cache/input_match.h"

#include <gtest/gtest.h>

#include <string>

namespace modcache::cache {
namespace {

// Each row holds its number. Row 100 and later ones cannot be measured.
class Numbers final : public InputSource {
 public:
  MeasuredInput measure(std::size_t row) const override {
    MeasuredInput measured;
    if (row < 100) measured.add_exact(&row, sizeof row);
    return measured;
  }
  bool is_costly() const override { return false; }
};

std::string sample_of(std::size_t row) {
  return std::string(Numbers().measure(row).sample().bytes());
}

TEST(InputMatchTest, ComparesSignatures) {
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

TEST(InputMatchTest, ComparesSamplesUnderInputOnly) {
  const Numbers numbers;
  EXPECT_TRUE(InputMatch(Match::kInput).fits_sample(&numbers, 5, sample_of(5)));
  EXPECT_FALSE(InputMatch(Match::kInput).fits_sample(&numbers, 5, sample_of(6)));
  EXPECT_TRUE(InputMatch(Match::kNone).fits_sample(&numbers, 5, sample_of(6)));
  EXPECT_TRUE(InputMatch(Match::kInput).compares_samples());
  EXPECT_FALSE(InputMatch(Match::kNone).compares_samples());
}

TEST(InputMatchTest, AnUnknownInputMatches) {
  const Numbers numbers;
  const InputMatch match(Match::kInput);
  EXPECT_TRUE(match.fits_sample(nullptr, 0, sample_of(6)));
  EXPECT_TRUE(match.fits_sample(&numbers, 5, ""));
  EXPECT_TRUE(match.fits_sample(&numbers, 100, sample_of(6)));
}

}  // namespace
}  // namespace modcache::cache
