// SPDX-License-Identifier: Apache-2.0
#include "tensor/row_padding.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "support/value_tensors.h"

namespace modcache::tensor {
namespace {

using testing::all_dtypes;
using testing::expect_same;
using testing::matrix_of;
using Lengths = std::vector<std::int64_t>;

RowPadding padding_of(Lengths lengths, std::int64_t longest, double value = 0) {
  RowPadding padding;
  padding.longest = longest;
  padding.lengths = std::move(lengths);
  padding.value = value;
  return padding;
}

TEST(RowPaddingTest, a_mask_of_any_dtype_is_true_where_it_is_not_0) {
  const at::Tensor mask = at::tensor({1, 1, 0, 1, 0, 0, 0, 0, 0}, at::kLong).view({3, 3});
  for (const at::ScalarType dtype : {at::kBool, at::kByte, at::kLong, at::kFloat, at::kHalf}) {
    const RowPadding padding = RowPadding::of_mask(mask.to(dtype), 1.5);
    EXPECT_EQ(padding.lengths, (Lengths{2, 1, 0}));
    EXPECT_EQ(padding.longest, 3);
    EXPECT_EQ(padding.value, 1.5);
    EXPECT_EQ(padding.why_not, "");
  }
  EXPECT_EQ(RowPadding::of_mask(at::ones({3, 0}), 0).lengths, (Lengths{0, 0, 0}));
}

TEST(RowPaddingTest, the_true_part_is_on_one_side_in_all_rows_or_that_is_told) {
  const auto of_mask = [](const std::vector<std::int64_t>& mask) {
    return RowPadding::of_mask(at::tensor(mask, at::kLong).view({-1, 3}), 0);
  };
  EXPECT_EQ(of_mask({1, 1, 1, 0, 0, 0}).true_part, TruePart::kFirst);
  const RowPadding left = of_mask({0, 1, 1, 1, 1, 1, 0, 0, 0});
  EXPECT_EQ(left.true_part, TruePart::kLast);
  EXPECT_EQ(left.lengths, (Lengths{2, 3, 0}));
  EXPECT_EQ(left.why_not, "");
  EXPECT_NE(of_mask({0, 1, 1, 1, 1, 0}).why_not.find("in some rows"), std::string::npos);
  EXPECT_NE(of_mask({1, 0, 1}).why_not.find("holes"), std::string::npos);
  EXPECT_NE(of_mask({0, 1, 0}).why_not.find("holes"), std::string::npos);
}

TEST(RowPaddingTest, what_is_neither_mask_nor_lengths_is_a_mistake) {
  EXPECT_THROW(RowPadding::of_mask(at::ones({3}), 0), c10::ValueError);
  EXPECT_THROW(RowPadding::of_mask(at::ones({2, 3}).to_sparse(), 0), c10::ValueError);
  EXPECT_THROW(RowPadding::of_lengths(at::ones({2}), 3, 0), c10::ValueError);
  EXPECT_THROW(RowPadding::of_lengths(at::tensor({1, 4}, at::kLong), 3, 0), c10::ValueError);
  EXPECT_THROW(RowPadding::of_lengths(at::tensor({1, -1}, at::kLong), 3, 0), c10::ValueError);
  EXPECT_EQ(RowPadding::of_lengths(at::tensor({0, 3}, at::kInt), 3, 0).lengths, (Lengths{0, 3}));
}

TEST(RowPaddingTest, the_dimension_after_the_rows_is_padded) {
  const at::Tensor batch = at::arange(2 * 4 * 3).view({2, 4, 3});
  EXPECT_TRUE(is_padded(batch, 4));
  EXPECT_FALSE(is_padded(batch, 3));
  EXPECT_FALSE(is_padded(at::ones({4}), 4));
  EXPECT_TRUE(is_ambiguous(batch, 3));
  EXPECT_FALSE(is_ambiguous(batch, 4));
  EXPECT_TRUE(is_ambiguous(at::ones({2, 4, 4}), 4));
  expect_same(one_row_of_length(batch, 1, 4, 2), batch.slice(0, 1, 2).slice(1, 0, 2));
  expect_same(one_row_of_length(batch, 1, 9, 2), batch.slice(0, 1, 2));
  const at::Tensor longer = one_row_of_length(batch, 0, 4, 6);
  EXPECT_EQ(longer.sizes(), (std::vector<std::int64_t>{1, 6, 3}));
  expect_same(longer.slice(1, 0, 4), batch.slice(0, 0, 1));
  EXPECT_TRUE(at::equal(longer.slice(1, 4), at::zeros({1, 2, 3}, at::kLong)));
}

TEST(RowPaddingTest, a_row_that_is_padded_on_the_left_is_cut_and_padded_there) {
  const at::Tensor batch = at::arange(2 * 4 * 3).view({2, 4, 3});
  const auto row = [&](std::int64_t length) {
    return one_row_of_length(batch, 1, 4, length, TruePart::kLast);
  };
  expect_same(row(3), batch.slice(0, 1, 2).slice(1, 1, 4));
  expect_same(row(6).slice(1, 2, 6), batch.slice(0, 1, 2));
  EXPECT_TRUE(at::equal(row(6).slice(1, 0, 2), at::zeros({1, 2, 3}, at::kLong)));
  expect_same(cut_to_length(batch[0], 0b1, 2, TruePart::kLast), batch[0].slice(0, 2, 4));
}

TEST(RowPaddingTest, a_row_of_a_result_is_cut_in_the_dimensions_that_are_given) {
  const at::Tensor row = at::arange(4 * 3 * 4).view({4, 3, 4});
  expect_same(cut_to_length(row, 0b101, 2), row.slice(0, 0, 2).slice(2, 0, 2));
  expect_same(cut_to_length(row, 0, 2), row);
}

TEST(PadValueTest, fits_every_dtype) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(pad_value_of(at::kFloat, -1e30).item<float>(), -1e30F);
  EXPECT_EQ(pad_value_of(at::kHalf, -1e30).item<float>(), -infinity);
  EXPECT_EQ(pad_value_of(at::kChar, -1e30).item<int>(), -128);
  EXPECT_EQ(pad_value_of(at::kByte, -1).item<int>(), 0);
  EXPECT_EQ(pad_value_of(at::kByte, infinity).item<int>(), 255);
  EXPECT_EQ(pad_value_of(at::kLong, -infinity).item<std::int64_t>(),
            std::numeric_limits<std::int64_t>::min());
  EXPECT_GT(pad_value_of(at::kLong, infinity).item<std::int64_t>(), std::int64_t{1} << 62);
  EXPECT_EQ(pad_value_of(at::kInt, std::nan("")).item<int>(), 0);
  EXPECT_TRUE(pad_value_of(at::kBool, 0.5).item<bool>());
  for (const at::ScalarType dtype : all_dtypes()) {
    EXPECT_EQ(pad_value_of(dtype, 0).scalar_type(), dtype);
  }
}

TEST(WithPaddingTest, puts_the_value_after_the_true_part_of_each_row) {
  const at::Tensor batch = at::arange(1, 13, at::kFloat).view({2, 3, 2});
  const RowPadding padding = padding_of({9, 1, 3}, 3, -1);
  const at::Tensor padded = with_padding(batch, 0b1, padding, {1, 2});
  expect_same(padded,
              at::tensor({1., 2., -1., -1., -1., -1., 7., 8., 9., 10., 11., 12.}, at::kFloat)
                  .view({2, 3, 2}));
  EXPECT_TRUE(with_padding(batch, 0, padding, {1, 2}).is_same(batch));
  EXPECT_TRUE(with_padding(batch, 0b1, padding, {2, 2}).is_same(batch));
}

TEST(WithPaddingTest, puts_the_value_before_a_true_part_that_comes_last) {
  RowPadding padding = padding_of({1, 3}, 3, -1);
  padding.true_part = TruePart::kLast;
  const at::Tensor padded =
      with_padding(at::arange(1, 7, at::kFloat).view({2, 3}), 1, padding, {0, 1});
  expect_same(padded, at::tensor({-1., -1., 3., 4., 5., 6.}, at::kFloat).view({2, 3}));
}

TEST(WithPaddingTest, pads_every_dtype_and_keeps_graphs) {
  const RowPadding padding = padding_of({2, 0, 3, 1}, 3);
  for (const at::ScalarType dtype : all_dtypes()) {
    const at::Tensor batch = matrix_of(dtype);
    const at::Tensor padded = with_padding(batch, 0b1, padding, {0, 1, 2, 3});
    ASSERT_EQ(padded.scalar_type(), dtype);
    expect_same(padded.select(0, 0).slice(0, 0, 2), batch.select(0, 0).slice(0, 0, 2));
    expect_same(padded.select(0, 2), batch.select(0, 2));
  }
  const at::Tensor graph = at::ones({4, 3}).requires_grad_();
  with_padding(graph * 2, 0b1, padding, {0, 1, 2, 3}).sum().backward();
  EXPECT_EQ(graph.grad().sum().item<float>(), 12);
}

TEST(WithPaddingTest, keeps_strides) {
  const RowPadding padding = padding_of({2, 1, 3, 1}, 3, 5);
  const at::Tensor batch = at::arange(24).view({3, 4, 2}).transpose(0, 1);
  const at::Tensor padded = with_padding(batch, 0b1, padding, {0, 1, 2, 3});
  EXPECT_EQ(padded.strides(), batch.strides());
  EXPECT_EQ(padded.select(0, 1).select(0, 1).select(0, 0).item<std::int64_t>(), 5);
}

}  // namespace
}  // namespace modcache::tensor
