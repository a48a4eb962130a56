// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "support/stored_rows.h"
#include "support/value_tensors.h"
#include "tensor/rows.h"

namespace modcache::tensor {
namespace {

using cache::StoredDtype;
using testing::all_dtypes;
using testing::cut;
using testing::expect_same;
using testing::flat_of;
using testing::matrix_of;
using testing::StoredRows;
using Where = StoredRows::Where;

const at::Device kOnCpu{at::kCPU};

class RowsOutputTest : public ::testing::TestWithParam<Where> {
 protected:
  StoredRows stored(
      const std::vector<std::pair<std::size_t, std::shared_ptr<const RowValue>>>& rows) {
    StoredRows stored;
    for (const auto& [row, value] : rows) stored.add(row, value, GetParam());
    return stored;
  }
};
INSTANTIATE_TEST_SUITE_P(Where, RowsOutputTest,
                         ::testing::Values(Where::kInMemory, Where::kToBeRead, Where::kEncoded));

TEST_P(RowsOutputTest, stored_rows_of_every_dtype_come_back_in_order_bit_for_bit) {
  for (const at::ScalarType dtype : all_dtypes()) {
    const at::Tensor batch = matrix_of(dtype);
    const auto rows = cut(batch);
    RowsOutput output(4);
    const auto failures =
        stored({{2, rows[2]}, {0, rows[0]}, {3, rows[3]}, {1, rows[1]}}).add_to(output);
    EXPECT_TRUE(failures.empty());
    const auto together = output.together(kOnCpu);
    ASSERT_TRUE(together.has_value());
    EXPECT_EQ(together->root.kind, Node::Kind::kTensor);
    expect_same(together->tensors[0], batch);
  }
}

TEST_P(RowsOutputTest, rows_without_dimensions_or_elements_make_a_batch_too) {
  for (const at::Tensor& batch : {at::arange(3), at::ones({3, 0}), at::ones({3, 1, 2})}) {
    const auto rows = cut(batch);
    RowsOutput output(3);
    stored({{0, rows[0]}, {1, rows[1]}, {2, rows[2]}}).add_to(output);
    expect_same(output.together(kOnCpu)->tensors[0], batch);
  }
}

TEST_P(RowsOutputTest, several_tensors_per_row_with_their_plain_values) {
  Flat batch = flat_of(
      {at::arange(6, at::kByte).view({2, 3}), at::randn({2, 40}), at::arange(2), at::ones({2, 0})});
  const auto rows = cut(batch);
  RowsOutput output(2);
  stored({{1, rows[1]}, {0, rows[0]}}).add_to(output);
  const auto together = output.together(kOnCpu);
  ASSERT_TRUE(together.has_value());
  EXPECT_EQ(together->root, batch.root);
  for (std::size_t i = 0; i < 4; ++i) expect_same(together->tensors[i], batch.tensors[i]);
}

TEST_P(RowsOutputTest, stored_and_computed_rows_mix_in_any_order) {
  const at::Tensor batch = at::randn({5, 3});
  const auto rows = cut(batch);
  RowsOutput output(5);
  stored({{3, rows[3]}, {0, rows[0]}}).add_to(output);
  output.add_computed({1}, flat_of({select_rows(batch, {1})}));
  output.add_computed({2, 4}, flat_of({select_rows(batch, {2, 4}).t().contiguous().t()}));
  const auto together = output.together(kOnCpu);
  ASSERT_TRUE(together.has_value());
  expect_same(together->tensors[0], batch);
  EXPECT_TRUE(together->tensors[0].is_contiguous());
}

TEST_P(RowsOutputTest, repeated_keys_give_the_row_again_stored_or_computed) {
  const auto rows = cut(at::arange(4).view({2, 2}));
  RowsOutput output(5);
  stored({{1, rows[1]}}).add_to(output);
  output.add_computed({0}, flat_of({at::full({1, 2}, 7, at::kLong)}));
  output.repeat(2, 0);
  output.repeat(3, 1);
  output.repeat(4, 1);
  expect_same(output.together(kOnCpu)->tensors[0],
              at::tensor({7, 7, 2, 3, 7, 7, 2, 3, 2, 3}, at::kLong).view({5, 2}));
  RowsOutput all_stored(3);
  stored({{0, rows[1]}}).add_to(all_stored);
  all_stored.repeat(1, 0);
  all_stored.repeat(2, 0);
  expect_same(all_stored.together(kOnCpu)->tensors[0],
              at::tensor({2, 3, 2, 3, 2, 3}, at::kLong).view({3, 2}));
}

TEST_P(RowsOutputTest, rows_stored_under_other_settings_of_dtype_keep_what_each_was_stored_as) {
  const at::Tensor batch = at::full({3, 2}, 1.0 / 3);
  const auto kept = cut(flat_of({batch}), StoredDtype::kKeep)[0];
  const auto half = cut(flat_of({batch}), StoredDtype::kFloat16)[1];
  const auto brain = cut(flat_of({batch}), StoredDtype::kBfloat16)[2];
  const auto expected = [&](at::ScalarType dtype) {
    return at::full({2}, 1.0 / 3).to(dtype).to(at::kFloat);
  };
  const std::map<std::size_t, at::Tensor> of_row{
      {0, expected(at::kFloat)}, {1, expected(at::kHalf)}, {2, expected(at::kBFloat16)}};
  const std::map<std::size_t, std::shared_ptr<const RowValue>> row{
      {0, kept}, {1, half}, {2, brain}};
  for (const auto& order : std::vector<std::vector<std::size_t>>{{0, 1, 2}, {1, 2, 0}, {2, 0, 1}}) {
    RowsOutput at_once(3);
    stored(
        {{order[0], row.at(order[0])}, {order[1], row.at(order[1])}, {order[2], row.at(order[2])}})
        .add_to(at_once);
    RowsOutput one_by_one(3);
    for (const std::size_t i : order) stored({{i, row.at(i)}}).add_to(one_by_one);
    for (RowsOutput* output : {&at_once, &one_by_one}) {
      const auto together = output->together(kOnCpu);
      ASSERT_TRUE(together.has_value());
      for (const auto& [i, tensor] : of_row) {
        expect_same(together->tensors[0].select(0, static_cast<std::int64_t>(i)), tensor);
      }
    }
  }
}

TEST_P(RowsOutputTest, a_row_kept_wide_since_it_would_overflow_does_not_among_narrow_ones) {
  const auto half = cut(flat_of({at::ones({1, 2}), at::ones({1})}), StoredDtype::kFloat16)[0];
  const auto wide = cut(flat_of({at::full({1, 2}, 1e6), at::ones({1})}), StoredDtype::kFloat16)[0];
  RowsOutput output(3);
  stored({{0, half}, {1, wide}}).add_to(output);
  output.add_computed({2}, flat_of({at::full({1, 2}, 1e7), at::ones({1})}));
  const auto together = output.together(kOnCpu);
  ASSERT_TRUE(together.has_value());
  expect_same(together->tensors[0],
              at::tensor({1.0, 1.0, 1e6, 1e6, 1e7, 1e7}, at::kFloat).view({3, 2}));
  expect_same(together->tensors[1], at::ones({3}));
}

TEST_P(RowsOutputTest, narrow_rows_come_back_wide_beside_computed_ones) {
  const at::Tensor third = at::full({1, 2}, 1.0 / 3);
  RowsOutput output(2);
  stored({{0, cut(flat_of({third}), StoredDtype::kBfloat16)[0]}}).add_to(output);
  output.add_computed({1}, flat_of({third}));
  const at::Tensor together = output.together(kOnCpu)->tensors[0];
  expect_same(together.slice(0, 0, 1), third.to(at::kBFloat16).to(at::kFloat));
  expect_same(together.slice(0, 1, 2), third);
}

TEST(RowsOutputFailureTest, a_row_that_cannot_be_read_is_named_and_is_computed_instead) {
  for (const Where where : {Where::kToBeRead, Where::kEncoded}) {
    const auto rows = cut(at::zeros({3, 100}, at::kLong));
    for (std::size_t failing = 0; failing < 3; ++failing) {
      StoredRows stored;
      for (std::size_t i = 0; i < 3; ++i) stored.add(2 - i, rows[i], where);
      stored.fail(failing);
      RowsOutput output(3);
      const auto failures = stored.add_to(output);
      ASSERT_EQ(failures.size(), 1u);
      EXPECT_EQ(failures[0].place, failing);
      EXPECT_EQ(failures[0].status.code(), StatusCode::kCorruption);
      output.add_computed({static_cast<std::int64_t>(2 - failing)},
                          flat_of({at::zeros({1, 100}, at::kLong)}));
      expect_same(output.together(kOnCpu)->tensors[0], at::zeros({3, 100}, at::kLong));
    }
  }
}

TEST(RowsOutputFailureTest, a_broken_row_of_another_shape_does_not_drive_the_others_apart) {
  StoredRows stored;
  stored.add(0, cut(at::ones({1, 9}))[0], Where::kToBeRead);
  stored.add(1, cut(at::ones({1, 2}))[0], Where::kToBeRead);
  stored.fail(0);
  RowsOutput output(2);
  EXPECT_EQ(stored.add_to(output).size(), 1u);
  output.add_computed({0}, flat_of({at::zeros({1, 2})}));
  const auto together = output.together(kOnCpu);
  ASSERT_TRUE(together.has_value());
  expect_same(together->tensors[0], at::tensor({0.0, 0.0, 1.0, 1.0}, at::kFloat).view({2, 2}));
}

TEST(RowsOutputFailureTest, when_no_row_can_be_read_all_are_computed) {
  StoredRows stored;
  stored.add(0, cut(at::ones({1, 9}))[0], Where::kToBeRead);
  stored.fail(0);
  RowsOutput output(2);
  EXPECT_EQ(stored.add_to(output).size(), 1u);
  output.add_computed({0, 1}, flat_of({at::zeros({2, 2})}));
  expect_same(output.together(kOnCpu)->tensors[0], at::zeros({2, 2}));
}

TEST(RowsOutputFailureTest, a_header_with_sizes_that_torch_refuses_is_a_failure_and_no_exception) {
  ValueHeader header;
  header.tensors.resize(1);
  header.tensors[0].dtype = header.tensors[0].stored_dtype = static_cast<std::uint8_t>(at::kFloat);
  header.tensors[0].sizes = {0, std::int64_t{1} << 62, std::int64_t{1} << 62};
  EXPECT_EQ(Layout::of(header).status().code(), StatusCode::kCorruption);
  // These overflow in a batch of two.
  header.tensors[0].sizes = {0, std::int64_t{1} << 58};
  const LayoutPtr layout = Layout::of(header).value();
  const auto good = cut(at::ones({1, 1, 2}))[0];
  const std::byte none{};
  for (const bool comes_first : {true, false}) {
    std::vector<StoredRow> rows{{0, layout.get(), &none, 0, 0},
                                {1, &good->layout(), good->bytes(), 0, 0}};
    if (!comes_first) std::swap(rows[0], rows[1]);
    RowsOutput output(2);
    const auto failures = output.add_stored(rows, [](std::size_t, void*) { return Status::ok(); });
    // Alone it is no more than a row without elements.
    ASSERT_EQ(failures.size(), comes_first ? 1u : 0u);
    for (const auto& failure : failures) {
      EXPECT_EQ(failure.status.code(), StatusCode::kCorruption);
    }
  }
}

TEST(RowsOutputThreadsTest, a_large_batch_is_put_together_by_several_threads) {
  const at::Tensor batch = at::randn({64, 1 << 16});  // 16 MiB
  const auto rows = cut(batch);
  StoredRows stored;
  for (std::size_t i = 0; i < 64; ++i) {
    stored.add(63 - i, rows[63 - i], static_cast<Where>(i % 3));
  }
  RowsOutput output(64);
  EXPECT_TRUE(stored.add_to(output).empty());
  EXPECT_TRUE(at::equal(output.together(kOnCpu)->tensors[0], batch));
}

std::vector<Flat> odd_ones(const at::Tensor& x) {
  return {flat_of({x.to(at::kDouble)}), flat_of({x, x}), flat_of({x.view({1, 2, 1})})};
}

TEST(RowsOutputFailureTest, rows_of_another_kind_than_most_are_refused) {
  const at::Tensor x = at::ones({1, 2});
  const auto usual = cut(flat_of({x}))[0];
  for (const Flat& flat : odd_ones(x)) {
    const auto odd = cut(flat)[0];
    RowsOutput output(3);
    StoredRows stored;
    stored.add(0, odd, Where::kInMemory);
    stored.add(1, usual, Where::kInMemory);
    stored.add(2, usual, Where::kInMemory);
    const auto failures = stored.add_to(output);
    ASSERT_EQ(failures.size(), 1u);
    EXPECT_EQ(failures[0].place, 0u);
    EXPECT_EQ(failures[0].status.code(), StatusCode::kCorruption);
    output.add_computed({0}, flat_of({x}));
    EXPECT_FALSE(output.has_odd_stored_rows());
    EXPECT_TRUE(output.together(at::Device(at::kCPU)).has_value());
  }
}

}  // namespace
}  // namespace modcache::tensor
