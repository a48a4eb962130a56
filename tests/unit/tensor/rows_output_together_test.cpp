// SPDX-License-Identifier: Apache-2.0
//
// What the rows of a RowsOutput give together, or apart.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "support/stored_rows.h"
#include "support/value_tensors.h"
#include "tensor/input.h"
#include "tensor/rows.h"
#include "tensor/storable.h"

namespace modcache::tensor {
namespace {

using cache::StoredDtype;
using testing::all_dtypes;
using testing::cut;
using testing::dtypes_named;
using testing::expect_same;
using testing::flat_of;
using testing::matrix_of;
using testing::StoredRows;
using testing::with_number;
using Where = StoredRows::Where;

const at::Device kOnHost{at::kCPU};
const at::Device kAccelerator{at::kMeta};  // stands in for an accelerator

class RowsTogetherTest : public ::testing::TestWithParam<Where> {
 protected:
  StoredRows stored(
      const std::vector<std::pair<std::size_t, std::shared_ptr<const RowValue>>>& rows) {
    StoredRows stored;
    for (const auto& [row, value] : rows) stored.add(row, value, GetParam());
    return stored;
  }
};
INSTANTIATE_TEST_SUITE_P(Tiers, RowsTogetherTest,
                         ::testing::Values(Where::kInMemory, Where::kToBeRead, Where::kEncoded));

TEST_P(RowsTogetherTest, ragged_rows_come_apart) {
  const auto two = cut(at::arange(4).view({2, 2}));
  const auto three = cut(at::arange(6).view({2, 3}));
  RowsOutput output(5);
  EXPECT_TRUE(stored({{1, two[1]}, {0, three[0]}}).add_to(output).empty());
  output.add_computed({2, 4}, flat_of({at::ones({2, 2}, at::kLong)}));
  output.repeat(3, 0);
  EXPECT_FALSE(output.together(kOnHost).has_value());
  const auto rows = output.apart(kOnHost);
  ASSERT_EQ(rows.size(), 5u);
  expect_same(rows[0].tensors[0], at::tensor({0, 1, 2}, at::kLong));
  expect_same(rows[1].tensors[0], at::tensor({2, 3}, at::kLong));
  expect_same(rows[2].tensors[0], at::ones({2}, at::kLong));
  expect_same(rows[3].tensors[0], at::tensor({0, 1, 2}, at::kLong));
  expect_same(rows[4].tensors[0], at::ones({2}, at::kLong));
  rows[3].tensors[0].fill_(9);
  expect_same(rows[0].tensors[0], at::tensor({0, 1, 2}, at::kLong));
}

TEST_P(RowsTogetherTest, ragged_rows_of_every_dtype_come_apart) {
  for (const at::ScalarType dtype : all_dtypes()) {
    const at::Tensor batch = matrix_of(dtype);
    RowsOutput output(4);
    stored({{0, cut(batch)[0]}, {1, cut(batch.slice(1, 0, 2))[1]}}).add_to(output);
    output.repeat(2, 0);
    output.repeat(3, 1);
    EXPECT_FALSE(output.together(kOnHost).has_value());
    const auto rows = output.apart(kOnHost);
    expect_same(rows[0].tensors[0], batch.select(0, 0));
    expect_same(rows[1].tensors[0], batch.select(0, 1).slice(0, 0, 2));
    expect_same(rows[2].tensors[0], batch.select(0, 0));
    expect_same(rows[3].tensors[0], batch.select(0, 1).slice(0, 0, 2));
  }
}

TEST_P(RowsTogetherTest, rows_have_the_strides_of_the_batch_that_they_were_cut_from) {
  for (const at::ScalarType dtype : dtypes_named({"float32", "bfloat16", "uint16"})) {
    const at::Tensor image = at::arange(4 * 2 * 3 * 5).view({4, 2, 3, 5}).to(dtype);
    for (const at::Tensor& batch :
         {image.contiguous(), image.contiguous(at::MemoryFormat::ChannelsLast),
          image.transpose(2, 3), image.transpose(0, 1).contiguous().transpose(0, 1),
          image.permute({2, 0, 1, 3}).contiguous().permute({1, 2, 0, 3})}) {
      const auto rows = cut(batch);
      RowsOutput all_stored(5);
      stored({{0, rows[0]}, {1, rows[1]}, {2, rows[2]}, {3, rows[3]}}).add_to(all_stored);
      all_stored.repeat(4, 1);
      RowsOutput mixed(5);
      stored({{2, rows[2]}, {1, rows[1]}}).add_to(mixed);
      mixed.add_computed({0, 3}, flat_of({batch.slice(0, 0, 4, 3).contiguous()}));
      mixed.repeat(4, 1);
      RowsOutput computed(5);
      computed.add_computed({0, 1, 2, 3}, flat_of({batch}));
      computed.repeat(4, 1);
      const at::Tensor expected = select_rows(batch, {0, 1, 2, 3, 1});
      for (RowsOutput* const output : {&all_stored, &mixed, &computed}) {
        const at::Tensor together = output->together(kOnHost)->tensors[0];
        EXPECT_EQ(together.strides(), expected.strides());
        expect_same(together, expected);
      }
    }
  }
}

// Stores rows of their own length, and expects them padded as a module's result would be.
void expect_padded_rows(TruePart part, Where where) {
  RowPadding padding;
  padding.longest = 5;
  padding.lengths = {2, 5, 0, 3};
  padding.true_part = part;
  for (const at::ScalarType dtype : dtypes_named({"float32", "int64", "bfloat16", "uint16"})) {
    const at::Tensor image = at::arange(1, 4 * 5 * 2 + 1).view({4, 5, 2}).to(dtype);
    for (const at::Tensor& batch : {image, image.transpose(1, 2).contiguous().transpose(1, 2),
                                    image.transpose(0, 1).contiguous().transpose(0, 1)}) {
      RowCutter cutter(flat_of({batch}), kOnHost, StoredDtype::kKeep);
      StoredRows rows;
      for (std::size_t row = 0; row < 4; ++row) {
        rows.add(row, cutter.cut(row, {0b1}, padding.lengths[row], part), where);
      }
      for (const double value : {0.0, 7.0}) {
        if (value != 0 && dtype_name(dtype) == "uint16") continue;  // it is padded with 0
        padding.value = value;
        RowsOutput output(4, /*is_pinned=*/false, &padding);
        EXPECT_TRUE(rows.add_to(output).empty());
        EXPECT_EQ(output.padded_dims(), std::vector<DimSet>{0b1});
        const at::Tensor together = output.together(kOnHost)->tensors[0];
        EXPECT_EQ(together.strides(), batch.clone().strides());
        expect_same(together, with_padding(image, 0b1, padding, {0, 1, 2, 3}));
      }
    }
  }
}

TEST_P(RowsTogetherTest, rows_of_their_own_length_are_padded_to_the_batch) {
  expect_padded_rows(TruePart::kFirst, GetParam());
  expect_padded_rows(TruePart::kLast, GetParam());
}

TEST_P(RowsTogetherTest, a_row_of_another_length_than_its_input_is_broken) {
  RowPadding padding;
  padding.longest = 3;
  padding.lengths = {2, 3};
  RowCutter cutter(flat_of({at::ones({2, 3})}), kOnHost, StoredDtype::kKeep);
  RowsOutput output(2, /*is_pinned=*/false, &padding);
  const auto failures =
      stored({{0, cutter.cut(0, {0b1}, 1)}, {1, cutter.cut(1, {0b1}, 3)}}).add_to(output);
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].place, 0u);
}

TEST_P(RowsTogetherTest, rows_of_batches_with_other_strides_follow_the_first_one) {
  const at::Tensor image = at::arange(3 * 2 * 3 * 5).view({3, 2, 3, 5});
  const auto plain = cut(image.contiguous());
  const auto last = cut(image.contiguous(at::MemoryFormat::ChannelsLast));
  RowsOutput output(3);
  EXPECT_TRUE(stored({{0, last[0]}, {1, plain[1]}, {2, last[2]}}).add_to(output).empty());
  const at::Tensor together = output.together(kOnHost)->tensors[0];
  EXPECT_TRUE(together.is_contiguous(at::MemoryFormat::ChannelsLast));
  expect_same(together, image);
}

TEST_P(RowsTogetherTest, rows_that_come_apart_keep_their_order_of_dimensions) {
  const at::Tensor batch = at::arange(12).view({2, 2, 3}).transpose(1, 2);
  RowsOutput output(2);
  stored({{0, cut(batch)[0]}, {1, cut(at::ones({1, 2, 2}, at::kLong))[0]}}).add_to(output);
  ASSERT_FALSE(output.together(kOnHost).has_value());
  const auto rows = output.apart(kOnHost);
  EXPECT_EQ(rows[0].tensors[0].strides(), batch.select(0, 0).strides());
  expect_same(rows[0].tensors[0], batch.select(0, 0));
}

TEST_P(RowsTogetherTest, rows_with_other_plain_values_come_apart) {
  const at::Tensor x = at::ones({1, 2});
  const auto is_together = [&](const Flat& a, const Flat& b) {
    RowsOutput both_stored(2);
    stored({{0, cut(a)[0]}, {1, cut(b)[0]}}).add_to(both_stored);
    RowsOutput mixed(2);
    stored({{1, cut(b)[0]}}).add_to(mixed);
    mixed.add_computed({0}, a);
    const bool is_so = both_stored.together(kOnHost).has_value();
    EXPECT_EQ(mixed.together(kOnHost).has_value(), is_so);
    return is_so;
  };
  EXPECT_TRUE(is_together(flat_of({x}), flat_of({x})));
  EXPECT_TRUE(is_together(with_number(x, 1), with_number(x, 1)));
  EXPECT_FALSE(is_together(with_number(x, 1), with_number(x, 2)));
  RowsOutput output(2);
  stored({{0, cut(with_number(x, 1))[0]}, {1, cut(with_number(x, 2))[0]}}).add_to(output);
  ASSERT_FALSE(output.together(kOnHost).has_value());
  EXPECT_EQ(output.apart(kOnHost)[1].root.children[1].integer, 2);
}

TEST(ComputedRowsTogetherTest, one_run_for_all_rows_is_handed_on_as_it_is) {
  const at::Tensor batch = at::ones({2, 2}).requires_grad_() * 2;
  RowsOutput output(2);
  output.add_computed({0, 1}, flat_of({batch}));
  EXPECT_TRUE(output.together(kOnHost)->tensors[0].is_same(batch));
  RowsOutput sparse(2);
  sparse.add_computed({0, 1}, flat_of({at::ones({2, 2}).to_sparse()}));
  EXPECT_TRUE(sparse.together(kOnHost).has_value());
}

TEST(ComputedRowsTogetherTest, a_graph_goes_through_the_rows_that_were_computed) {
  const at::Tensor weight = at::ones({2}).requires_grad_();
  StoredRows stored;
  stored.add(1, cut(at::full({1, 2}, 5.0))[0], Where::kInMemory);
  RowsOutput output(4);
  stored.add_to(output);
  output.add_computed({0, 2}, flat_of({at::ones({2, 2}) * weight}));
  output.repeat(3, 2);
  const at::Tensor together = output.together(kOnHost)->tensors[0];
  EXPECT_TRUE(
      at::equal(together.detach().select(1, 0), at::tensor({1.0, 5.0, 1.0, 1.0}, at::kFloat)));
  together.sum().backward();
  EXPECT_TRUE(at::equal(weight.grad(), at::full({2}, 3.0)));
}

TEST(ComputedRowsTogetherTest, a_graph_goes_through_rows_of_any_strides) {
  const at::Tensor image = at::arange(3 * 2 * 3 * 5, at::kFloat).view({3, 2, 3, 5});
  for (const at::Tensor& batch : {image.contiguous(at::MemoryFormat::ChannelsLast),
                                  image.transpose(0, 1).contiguous().transpose(0, 1)}) {
    const at::Tensor weight = at::ones({1}).requires_grad_();
    StoredRows stored;
    stored.add(1, cut(batch)[1], Where::kInMemory);
    RowsOutput output(3);
    stored.add_to(output);
    output.add_computed({0, 2}, flat_of({select_rows(batch, {0, 2}) * weight}));
    const at::Tensor together = output.together(kOnHost)->tensors[0];
    EXPECT_EQ(together.strides(), batch.strides());
    expect_same(together.detach(), batch);
    together.sum().backward();
    EXPECT_TRUE(at::equal(weight.grad(), select_rows(batch, {0, 2}).sum().view({1})));
  }
}

TEST(ComputedRowsTogetherTest, views_and_conjugates_are_put_together_as_what_they_show) {
  const at::Tensor complex = at::randn({2, 3}, at::kComplexFloat);
  const at::ScalarType narrowest = dtypes_named({"uint8", "uint4"}).back();
  for (const at::Tensor& rows :
       {complex.conj(), at::arange(6).view({3, 2}).t(), at::ones({1, 3}).expand({2, 3}),
        at::_efficientzerotensor({2, 3}), matrix_of(narrowest, 2).slice(1, 0, 3, 2)}) {
    RowsOutput output(3);
    output.add_computed({2, 0}, flat_of({rows}));
    output.repeat(1, 0);
    const at::Tensor together = output.together(kOnHost)->tensors[0];
    const at::Tensor shown = copy_to_store(rows, StoredDtype::kKeep);
    expect_same(together.select(0, 2), shown.select(0, 0));
    expect_same(together.select(0, 0), shown.select(0, 1));
    expect_same(together.select(0, 1), shown.select(0, 1));
  }
}

TEST(StoredRowsTogetherTest, stored_rows_follow_the_input_if_they_lay_beside_it) {
  const auto stored = [](std::optional<at::Device> input) {
    StoredRows rows;
    rows.add(0, cut(flat_of({at::ones({1, 2})}), StoredDtype::kKeep, input)[0], Where::kInMemory);
    return rows;
  };
  const auto hit = [&](std::optional<at::Device> then, std::optional<at::Device> now) {
    RowsOutput output(1);
    stored(then).add_to(output);
    return output.together(now)->tensors[0].device();
  };
  EXPECT_EQ(hit(kOnHost, kAccelerator), kAccelerator);
  EXPECT_EQ(hit(kOnHost, kOnHost), kOnHost);
  EXPECT_EQ(hit(kAccelerator, kAccelerator), kOnHost) << "it lay elsewhere than its input";
  EXPECT_EQ(hit(kOnHost, std::nullopt), kOnHost);
}

std::vector<Flat> of_other_kinds(const at::Tensor& x) {
  return {flat_of({x.to(at::kDouble)}), flat_of({x, x}), flat_of({x.view({1, 2, 1})})};
}

TEST(StoredRowsTogetherTest, stored_rows_of_another_kind_than_the_module_gives_are_told) {
  const at::Tensor x = at::ones({1, 2});
  for (const Flat& flat : of_other_kinds(x)) {
    const auto odd = cut(flat)[0];
    RowsOutput output(2);
    StoredRows stored;
    stored.add(0, odd, Where::kInMemory);
    EXPECT_TRUE(stored.add_to(output).empty());
    output.add_computed({1}, flat_of({x}));
    EXPECT_TRUE(output.has_odd_stored_rows());
  }
}

}  // namespace
}  // namespace modcache::tensor
