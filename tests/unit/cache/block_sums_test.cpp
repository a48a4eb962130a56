// SPDX-License-Identifier: Apache-2.0
#include "cache/block_sums.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace modcache::cache {
namespace {

using Row = std::vector<float>;

Row normal_row(std::size_t elements) {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  Row row(elements);
  for (float& element : row) element = normal(generator);
  return row;
}

BlockSums sums_of(const std::vector<Row>& rows) {
  std::vector<FloatBlock> blocks;
  for (const Row& row : rows) blocks.push_back({row.data(), row.size()});
  BlockSums sums;
  sum_blocks(blocks.data(), blocks.size(), sums);
  return sums;
}

// The weights, read off blocks that have a one in a single place.
float weight_of(std::size_t place) {
  Row row(kMostBlockElements, 0.0F);
  row[place] = 1;
  return sums_of({row}).projections[0];
}

TEST(BlockSumsTest, weights_lie_between_a_half_and_one_and_mostly_are_positive) {
  std::size_t positive = 0;
  for (std::size_t i = 0; i < kMostBlockElements; ++i) {
    EXPECT_GE(std::fabs(weight_of(i)), 0.5F);
    EXPECT_LT(std::fabs(weight_of(i)), 1.0F);
    positive += weight_of(i) > 0 ? 1 : 0;
  }
  EXPECT_GT(positive, kMostBlockElements / 2);
  EXPECT_LT(positive, kMostBlockElements);
}

TEST(BlockSumsTest, each_block_has_its_own_sums_whatever_stands_beside_it) {
  for (std::size_t count = 1; count <= BlockSums::kMost; ++count) {
    for (const std::size_t elements : {1, 3, 4, 7, 16, 32, 49, 63, 64}) {
      std::vector<Row> rows;
      for (std::size_t i = 0; i < count; ++i) {
        // Blocks of one tensor may differ in length by one.
        rows.push_back(normal_row(elements - (elements > 1 ? i % 2 : 0)));
        rows.back()[0] += static_cast<float>(i);
      }
      const BlockSums sums = sums_of(rows);
      ASSERT_EQ(sums.count, count);
      EXPECT_EQ(sums.specials, 0U);
      for (std::size_t i = 0; i < count; ++i) {
        double projection = 0;
        double magnitude = 0;
        for (std::size_t k = 0; k < rows[i].size(); ++k) {
          projection += double{weight_of(k)} * rows[i][k];
          magnitude += std::fabs(rows[i][k]);
        }
        EXPECT_NEAR(sums.projections[i], projection, 1e-5 * magnitude);
        EXPECT_NEAR(sums.magnitudes[i], magnitude, 1e-5 * magnitude);
      }
    }
  }
}

TEST(BlockSumsTest, infinities_and_nan_are_left_out_of_the_sums_and_told_by_their_places) {
  const float infinity = std::numeric_limits<float>::infinity();
  Row with = normal_row(32);
  Row without = with;
  with[5] = infinity;
  without[5] = 0;
  Row negative = with;
  negative[5] = -infinity;
  Row none = with;
  none[5] = std::nanf("");
  const BlockSums sums = sums_of({without, with, negative, none, without});
  EXPECT_EQ(sums.specials, 0b01110U);
  for (std::size_t i = 1; i < 4; ++i) {
    EXPECT_NEAR(sums.projections[i], sums.projections[0], 1e-4);
    EXPECT_NEAR(sums.magnitudes[i], sums.magnitudes[0], 1e-4);
  }
  EXPECT_NE(sums.special_hashes[1], sums.special_hashes[2]);
  EXPECT_NE(sums.special_hashes[1], sums.special_hashes[3]);
  EXPECT_NE(sums.special_hashes[2], sums.special_hashes[3]);
}

TEST(BlockSumsTest, a_sum_that_overflows_is_taken_for_special) {
  const BlockSums sums = sums_of({Row(64, std::numeric_limits<float>::max()), Row(64, 1.0F)});
  EXPECT_EQ(sums.specials, 1U);
}

}  // namespace
}  // namespace modcache::cache
