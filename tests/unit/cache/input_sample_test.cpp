// SPDX-License-Identifier: Apache-2.0
#include "cache/input_sample.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace modcache::cache {
namespace {

using Row = std::vector<float>;

Row normal_row(std::uint32_t seed, std::size_t elements = 256) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  Row row(elements);
  for (float& element : row) element = normal(generator);
  return row;
}

MeasuredInput measured(const Row& row, std::size_t blocks = 16) {
  std::vector<FloatBlock> parts;
  const std::size_t length = row.size() / blocks;
  for (std::size_t i = 0; i < blocks; ++i) parts.push_back({row.data() + i * length, length});
  BlockSums sums;
  sum_blocks(parts.data(), parts.size(), sums);
  MeasuredInput input;
  input.add_blocks(sums, length);
  return input;
}

bool agree(const Row& stored, const Row& given) {
  const InputSample sample = measured(stored).sample();
  return measured(given).agrees_with(sample.bytes());
}

float as_bfloat16(float number) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &number, sizeof bits);
  bits = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000U;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}

TEST(InputSampleTest, an_input_agrees_with_its_own_sample) {
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    EXPECT_TRUE(agree(normal_row(seed), normal_row(seed)));
  }
}

TEST(InputSampleTest, unrelated_inputs_do_not_agree) {
  for (std::uint32_t seed = 0; seed < 1000; ++seed) {
    EXPECT_FALSE(agree(normal_row(seed), normal_row(seed + 5000)));
  }
}

TEST(InputSampleTest, what_was_rounded_to_bfloat16_agrees_both_ways) {
  for (std::uint32_t seed = 0; seed < 1000; ++seed) {
    const Row row = normal_row(seed);
    Row rounded = row;
    for (float& element : rounded) element = as_bfloat16(element);
    EXPECT_TRUE(agree(row, rounded));
    EXPECT_TRUE(agree(rounded, row));
  }
}

TEST(InputSampleTest, sparse_rows_with_their_strokes_elsewhere_do_not_agree) {
  Row one(256, 0.0F);
  Row other(256, 0.0F);
  for (std::size_t i = 0; i < 12; ++i) {
    one[100 + i] = 1;
    other[140 + i] = 1;
  }
  EXPECT_FALSE(agree(one, other));
  EXPECT_FALSE(agree(one, Row(256, 0.0F)));
  EXPECT_FALSE(agree(Row(256, 0.0F), one));
}

TEST(InputSampleTest, a_row_that_is_lighter_or_negated_does_not_agree) {
  Row row = normal_row(1);
  Row lighter = row;
  for (float& element : lighter) element += 0.5F;
  EXPECT_FALSE(agree(row, lighter));
  Row negated = row;
  for (float& element : negated) element = -element;
  EXPECT_FALSE(agree(row, negated));
}

TEST(InputSampleTest, infinities_and_nan_agree_where_they_are_the_same) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::array<float, 3> specials{infinity, -infinity, std::nanf("")};
  for (const float special : specials) {
    Row row = normal_row(2);
    row[5] = special;
    EXPECT_TRUE(agree(row, row));
    EXPECT_FALSE(agree(row, normal_row(2)));
    EXPECT_FALSE(agree(normal_row(2), row));
    Row moved = normal_row(2);
    moved[6] = special;
    EXPECT_FALSE(agree(row, moved));
    // The other blocks are compared as ever.
    Row other = normal_row(3);
    other[5] = special;
    EXPECT_FALSE(agree(row, other));
  }
}

TEST(InputSampleTest, the_largest_numbers_agree_with_themselves) {
  const Row row(256, std::numeric_limits<float>::max());
  EXPECT_TRUE(agree(row, row));
  EXPECT_FALSE(agree(row, Row(256, 1.0F)));
}

// The smallest numbers lose so much to bfloat16 that their tolerance does not cover it.
TEST(InputSampleTest, the_smallest_numbers_agree_with_themselves) {
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    Row row = normal_row(seed);
    for (float& element : row) element *= 1e-41F;
    EXPECT_TRUE(agree(row, row));
  }
}

TEST(InputSampleTest, infinities_in_one_of_two_tensors_are_compared) {
  const auto measure_both = [](const Row& first, const Row& second) {
    MeasuredInput input;
    for (const Row* const row : {&first, &second}) {
      std::vector<FloatBlock> parts;
      for (std::size_t i = 0; i < 8; ++i) parts.push_back({row->data() + i * 32, 32});
      BlockSums sums;
      sum_blocks(parts.data(), parts.size(), sums);
      input.add_blocks(sums, 32);
    }
    return input;
  };
  const Row finite = normal_row(4);
  Row special = finite;
  special[40] = std::numeric_limits<float>::infinity();
  const std::array<MeasuredInput, 4> inputs{
      measure_both(finite, finite), measure_both(special, finite), measure_both(finite, special),
      measure_both(special, special)};
  for (const MeasuredInput& one : inputs) {
    for (const MeasuredInput& other : inputs) {
      EXPECT_EQ(other.agrees_with(one.sample().bytes()), &one == &other);
    }
  }
}

TEST(InputSampleTest, what_is_exact_must_be_equal) {
  MeasuredInput one;
  one.set_exact(7);
  MeasuredInput other;
  other.set_exact(8);
  EXPECT_TRUE(one.agrees_with(one.sample().bytes()));
  EXPECT_FALSE(other.agrees_with(one.sample().bytes()));
}

TEST(InputSampleTest, a_sample_that_is_empty_or_of_another_version_agrees) {
  const MeasuredInput input = measured(normal_row(1));
  std::string unknown(input.sample().bytes());
  unknown[0] = 99;
  EXPECT_TRUE(input.agrees_with(""));
  EXPECT_TRUE(input.agrees_with(unknown));
}

TEST(InputSampleTest, a_sample_of_another_size_does_not_agree) {
  const MeasuredInput input = measured(normal_row(1));
  const std::string bytes(input.sample().bytes());
  for (std::size_t size = 1; size < bytes.size(); ++size) {
    EXPECT_FALSE(input.agrees_with(std::string_view(bytes).substr(0, size)));
  }
  EXPECT_FALSE(input.agrees_with(bytes + "x"));
}

// On disk: another sample under this version would make every entry a conflict.
TEST(InputSampleTest, the_bytes_of_a_sample_never_change) {
  Row row(32);
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(i) - 10;
  MeasuredInput input = measured(row, 2);
  input.set_exact(0x0102030405060708);
  const InputSample sample = input.sample();
  std::string hex;
  for (const char byte : sample.bytes()) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    hex += kDigits[static_cast<unsigned char>(byte) >> 4];
    hex += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  EXPECT_EQ(hex, "01c4c1c0420807060504030201");
}

TEST(InputSampleTest, more_bytes_than_any_version_writes_are_no_sample) {
  EXPECT_EQ(InputSample(std::string(59, 'x')).bytes().size(), 59);
  EXPECT_TRUE(InputSample(std::string(60, 'x')).empty());
}

}  // namespace
}  // namespace modcache::cache
