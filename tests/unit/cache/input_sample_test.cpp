// SPDX-License-Identifier: Apache-2.0
#include "cache/input_sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/hash.h"

namespace modcache::cache {
namespace {

using Row = std::vector<float>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

Row normal_row(std::uint32_t seed, std::size_t elements = 256) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  Row row(elements);
  for (float& element : row) element = normal(generator);
  return row;
}

// The last block has what remains of the row.
void add(MeasuredInput& input, const Row& row, std::size_t num_blocks) {
  std::vector<FloatBlock> blocks;
  const std::size_t length = row.size() / num_blocks;
  for (std::size_t i = 0; i < num_blocks; ++i) blocks.push_back({&row[i * length], length});
  blocks.back().count += row.size() % num_blocks;
  input.add_floats(blocks);
}

MeasuredInput measured(const Row& row, std::size_t num_blocks = 16) {
  MeasuredInput input;
  add(input, row, num_blocks);
  return input;
}

bool matches(const Row& stored, const Row& given) {
  const InputSample sample = measured(stored).sample();
  return measured(given).matches(sample.bytes());
}

Row scaled(Row row, float factor) {
  for (float& element : row) element *= factor;
  return row;
}

float as_bfloat16(float number) {
  const auto bits = std::bit_cast<std::uint32_t>(number);
  return std::bit_cast<float>((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000U);
}

TEST(InputSampleTest, AnInputMatchesItself) {
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    for (const std::size_t elements : {1, 2, 3, 7, 16, 31, 64}) {
      const Row row = normal_row(seed, elements);
      EXPECT_TRUE(measured(row, 1).matches(measured(row, 1).sample().bytes()));
    }
    EXPECT_TRUE(matches(normal_row(seed), normal_row(seed)));
  }
}

TEST(InputSampleTest, UnrelatedInputsDiffer) {
  for (std::uint32_t seed = 0; seed < 1000; ++seed) {
    EXPECT_FALSE(matches(normal_row(seed), normal_row(seed + 5000)));
  }
}

TEST(InputSampleTest, EveryElementOfABlockCounts) {
  const Row row(64, 1.0F);
  for (std::size_t elements = 1; elements <= row.size(); ++elements) {
    Row shorter(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(elements));
    const std::string sample(measured(shorter, 1).sample().bytes());
    shorter.back() += static_cast<float>(elements);
    EXPECT_FALSE(measured(shorter, 1).matches(sample)) << elements;
  }
}

TEST(InputSampleTest, RoundingToBfloat16MatchesBothWays) {
  for (std::uint32_t seed = 0; seed < 1000; ++seed) {
    const Row row = normal_row(seed);
    Row rounded = row;
    for (float& element : rounded) element = as_bfloat16(element);
    EXPECT_TRUE(matches(row, rounded));
    EXPECT_TRUE(matches(rounded, row));
  }
}

TEST(InputSampleTest, LastBitsOfValuesThatCancelOutMatch) {
  Row row = normal_row(1);
  std::fill(row.begin(), row.begin() + 16, 0.0F);
  Row noisy = row;
  std::fill(noisy.begin(), noisy.begin() + 16, 1e-7F);
  EXPECT_TRUE(matches(row, noisy));
  EXPECT_TRUE(matches(noisy, row));
}

TEST(InputSampleTest, ElementsThatMovedToAnotherBlockDiffer) {
  Row one(256, 0.0F);
  Row other(256, 0.0F);
  for (std::size_t i = 0; i < 12; ++i) {
    one[100 + i] = 1;
    other[140 + i] = 1;
  }
  EXPECT_FALSE(matches(one, other));
  EXPECT_FALSE(matches(one, Row(256, 0.0F)));
  EXPECT_FALSE(matches(Row(256, 0.0F), one));
}

TEST(InputSampleTest, ElementsInAnotherOrderDiffer) {
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    const Row row = normal_row(seed);
    Row other = row;
    for (std::size_t i = 0; i < row.size(); i += 16) {  // in each block
      std::reverse(&other[i], &other[i] + 16);
    }
    EXPECT_FALSE(matches(row, other));
  }
}

TEST(InputSampleTest, ALighterOrNegatedRowDiffers) {
  const Row row = normal_row(1);
  Row lighter = row;
  for (float& element : lighter) element += 0.5F;
  EXPECT_FALSE(matches(row, lighter));
  EXPECT_FALSE(matches(row, scaled(row, -1)));
}

TEST(InputSampleTest, NanAndInfinitiesMatchWhereTheyAreTheSame) {
  const std::array<float, 3> specials{kInfinity, -kInfinity, std::nanf("")};
  for (const float special : specials) {
    Row row = normal_row(2);
    row[5] = special;
    EXPECT_TRUE(matches(row, row));
    EXPECT_FALSE(matches(row, normal_row(2)));
    EXPECT_FALSE(matches(normal_row(2), row));
    Row moved = normal_row(2);
    moved[6] = special;
    EXPECT_FALSE(matches(row, moved));
    Row other = normal_row(3);
    other[5] = special;
    EXPECT_FALSE(matches(row, other)) << "finite elements are compared, too";
    for (const float another : specials) {
      Row replaced = row;
      replaced[5] = another;
      EXPECT_EQ(matches(row, replaced), std::bit_cast<int>(another) == std::bit_cast<int>(special));
    }
  }
}

TEST(InputSampleTest, InfinitiesAreComparedInEachTensor) {
  const auto measure_both = [](const Row& first, const Row& second) {
    MeasuredInput input;
    add(input, first, 8);
    add(input, second, 8);
    return input;
  };
  const Row zeros(256, 0.0F);
  Row special = zeros;
  special[40] = kInfinity;
  const std::array<MeasuredInput, 4> inputs{
      measure_both(zeros, zeros), measure_both(special, zeros), measure_both(zeros, special),
      measure_both(special, special)};
  for (const MeasuredInput& one : inputs) {
    for (const MeasuredInput& other : inputs) {
      EXPECT_EQ(other.matches(one.sample().bytes()), &one == &other);
    }
  }
}

TEST(InputSampleTest, NumbersWhoseSumsOverflowMatchThemselves) {
  EXPECT_TRUE(matches(Row(256, kLargest), Row(256, kLargest)));
  EXPECT_FALSE(matches(Row(256, kLargest), Row(256, -kLargest)));
  EXPECT_FALSE(matches(Row(256, kLargest), Row(256, 1.0F)));
  EXPECT_TRUE(matches(Row(256, 9e29F), Row(256, as_bfloat16(9e29F))));
  EXPECT_FALSE(matches(Row(256, 9e29F), Row(256, 5e29F)));
}

TEST(InputSampleTest, SubnormalNumbersMatchThemselves) {
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    const Row row = scaled(normal_row(seed), 1e-41F);
    EXPECT_TRUE(matches(row, row));
  }
}

TEST(InputSampleTest, TinyNumbersDiffer) {
  EXPECT_FALSE(matches(scaled(normal_row(1), 1e-9F), scaled(normal_row(2), 1e-9F)));
  EXPECT_FALSE(matches(scaled(normal_row(1), 1e-30F), scaled(normal_row(2), 1e-30F)));
}

TEST(InputSampleTest, ExactBytesMustBeEqual) {
  const auto sample_of = [](std::string_view first, std::string_view second) {
    MeasuredInput input;
    input.add_exact(first.data(), first.size());
    input.add_exact(second.data(), second.size());
    return std::string(input.sample().bytes());
  };
  MeasuredInput input;
  input.add_exact("ab", 2);
  input.add_exact("cd", 2);
  EXPECT_TRUE(input.matches(sample_of("ab", "cd")));
  EXPECT_FALSE(input.matches(sample_of("ab", "cx")));
  EXPECT_FALSE(input.matches(sample_of("xb", "cd")));
  EXPECT_FALSE(input.matches(sample_of("cd", "ab")));
}

TEST(InputSampleTest, FloatsAndExactBytesAreBothCompared) {
  const auto measured_with = [](std::uint32_t seed, char byte) {
    MeasuredInput input = measured(normal_row(seed));
    input.add_exact(&byte, 1);
    return input;
  };
  const InputSample sample = measured_with(1, 'a').sample();
  EXPECT_TRUE(measured_with(1, 'a').matches(sample.bytes()));
  EXPECT_FALSE(measured_with(1, 'b').matches(sample.bytes()));
  EXPECT_FALSE(measured_with(2, 'a').matches(sample.bytes()));
}

TEST(InputSampleTest, AnEmptySampleMatchesAndOneOfAnotherSizeDoesNot) {
  const MeasuredInput input = measured(normal_row(1));
  const std::string sample(input.sample().bytes());
  EXPECT_TRUE(input.matches(sample));
  EXPECT_TRUE(input.matches(""));
  for (std::size_t size = 1; size < sample.size(); ++size) {
    EXPECT_FALSE(input.matches(std::string_view(sample).substr(0, size))) << size;
  }
  EXPECT_FALSE(input.matches(sample + "x"));
}

TEST(InputSampleTest, AnInputOfWhichNothingWasReadMatches) {
  const MeasuredInput nothing{};
  EXPECT_TRUE(nothing.sample().empty());
  EXPECT_TRUE(nothing.matches(measured(normal_row(1)).sample().bytes()));
  EXPECT_TRUE(nothing.matches(""));
}

TEST(InputSampleTest, HasABoundedSize) {
  MeasuredInput input = measured(normal_row(1));
  add(input, normal_row(2), 16);
  add(input, normal_row(3), 16);
  input.add_exact("a", 1);
  EXPECT_EQ(input.sample().bytes().size(), InputSample::kMaxBytes);
  EXPECT_TRUE(input.matches(input.sample().bytes()));
  EXPECT_TRUE(InputSample(std::string(InputSample::kMaxBytes + 1, 'x')).empty());
  EXPECT_EQ(InputSample(std::string(InputSample::kMaxBytes, 'x')).bytes(),
            std::string(InputSample::kMaxBytes, 'x'));
}

// Samples are stored: other bytes would make every entry a conflict.
TEST(InputSampleTest, HasTheBytesThatTheFormatSays) {
  Row row(32);
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(i) - 10;
  MeasuredInput input = measured(row, 2);
  EXPECT_EQ(hex_of(input.sample().bytes()), "000000000000000001c1c942");
  input.add_exact("bytes", 5);
  const std::uint64_t hash = xxh3_64("bytes", 5, 0);
  const std::string hash_bytes(reinterpret_cast<const char*>(&hash), sizeof hash);
  EXPECT_EQ(hex_of(input.sample().bytes()), hex_of(hash_bytes) + "01c1c942");
}

}  // namespace
}  // namespace modcache::cache
