// SPDX-License-Identifier: Apache-2.0
#include "remote/slices.h"

#include <gtest/gtest.h>

#include <string>

namespace modcache::remote {
namespace {

std::vector<SharedBytes> values_of(std::size_t count, std::size_t size_bytes) {
  return std::vector<SharedBytes>(count, share_bytes(std::string(size_bytes, 'x')));
}

TEST(SlicesTest, small_values_are_asked_for_in_longer_slices_up_to_the_most) {
  Slices slices(512);
  EXPECT_EQ(slices.next(), Slices::kFirst);
  slices.note(values_of(Slices::kFirst, 100));
  EXPECT_EQ(slices.next(), Slices::kFirst * Slices::kGrowth);
  for (int i = 0; i < 4; ++i) slices.note(values_of(slices.next(), 100));
  EXPECT_EQ(slices.next(), 512u);
}

TEST(SlicesTest, large_values_are_asked_for_one_by_one) {
  Slices slices(512);
  slices.note(values_of(2, Slices::kSliceBytes * 2));
  EXPECT_EQ(slices.next(), 1u);
  slices.note(values_of(1, Slices::kSliceBytes / 3));
  EXPECT_EQ(slices.next(), 3u);
}

TEST(SlicesTest, names_without_values_and_no_names_are_no_reason_to_stop) {
  Slices slices(4);
  EXPECT_EQ(slices.next(), 4u);
  slices.note({});
  EXPECT_EQ(slices.next(), 4u);
  slices.note(std::vector<SharedBytes>(4));
  EXPECT_EQ(slices.next(), 4u);
}

}  // namespace
}  // namespace modcache::remote
