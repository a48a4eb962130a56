// SPDX-License-Identifier: Apache-2.0
//
// Rows on a device. The device is the CPU here, as only the place where a value was put matters.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "support/value_tensors.h"
#include "tensor/row_value.h"
#include "tensor/rows.h"
#include "tensor/stored_format.h"

namespace modcache::tensor {
namespace {

using cache::StoredDtype;
using modcache::testing::all_dtypes;
using modcache::testing::cut;
using modcache::testing::expect_same;
using modcache::testing::flat_of;
using modcache::testing::matrix_of;

using Resident = std::vector<std::shared_ptr<const RowValue>>;

const at::Device kHost{at::kCPU};

Resident on_device(const std::vector<std::shared_ptr<const RowValue>>& rows) {
  Resident resident;
  for (const auto& row : rows) {
    resident.push_back(row->on("cpu"));
    EXPECT_TRUE(resident.back()->is_on_device());
    EXPECT_EQ(resident.back()->bytes(), nullptr);
    EXPECT_FALSE(resident.back()->outlives_fork());
  }
  return resident;
}

TEST(ResidentRowsTest, rows_of_every_dtype_come_together_bit_for_bit) {
  for (const at::ScalarType dtype : all_dtypes()) {
    const at::Tensor batch = matrix_of(dtype);
    const auto together = together_on_device(on_device(cut(batch)), kHost);
    ASSERT_TRUE(together.has_value());
    expect_same(together->tensors[0], batch);
  }
}

TEST(ResidentRowsTest, rows_without_dimensions_or_elements) {
  for (const at::Tensor& batch : {at::arange(3), at::ones({3, 0}), at::ones({3, 1, 2})}) {
    const auto together = together_on_device(on_device(cut(batch)), kHost);
    expect_same(together->tensors[0], batch);
  }
}

TEST(ResidentRowsTest, several_tensors_per_row) {
  const Flat batch = flat_of(
      {at::arange(6, at::kByte).view({2, 3}), at::randn({2, 40}), at::arange(2), at::ones({2, 0})});
  const auto together = together_on_device(on_device(cut(batch)), kHost);
  ASSERT_TRUE(together.has_value());
  EXPECT_EQ(together->root, batch.root);
  for (std::size_t i = 0; i < 4; ++i) expect_same(together->tensors[i], batch.tensors[i]);
}

TEST(ResidentRowsTest, narrowed_rows_come_back_in_the_dtype_that_the_module_gave) {
  const Flat batch = flat_of({at::full({2, 3}, 1.0 / 3)});
  const auto together = together_on_device(on_device(cut(batch, StoredDtype::kFloat16)), kHost);
  expect_same(together->tensors[0], at::full({2, 3}, 1.0 / 3).to(at::kHalf).to(at::kFloat));
}

TEST(ResidentRowsTest, what_is_handed_out_may_be_written_into) {
  const Resident rows = on_device(cut(at::ones({1, 3})));
  together_on_device(rows, kHost)->tensors[0].zero_();
  expect_same(together_on_device(rows, kHost)->tensors[0], at::ones({1, 3}));
}

TEST(ResidentRowsTest, rows_that_differ_do_not_come_together) {
  const auto narrow = on_device(cut(at::ones({1, 3})));
  for (const at::Tensor& other : {at::ones({1, 4}), at::ones({1, 3}, at::kLong)}) {
    const auto rows = on_device(cut(other));
    EXPECT_FALSE(together_on_device({narrow[0], rows[0]}, kHost).has_value());
  }
  const auto half = on_device(cut(flat_of({at::ones({1, 3})}), StoredDtype::kFloat16));
  EXPECT_FALSE(together_on_device({narrow[0], half[0]}, kHost).has_value());
}

TEST(ResidentRowsTest, a_row_comes_back_to_the_host_as_it_was) {
  const at::Tensor batch = at::randn({2, 3});
  const auto rows = cut(batch);
  const auto back = rows[1]->on("cpu")->on_host();
  EXPECT_FALSE(back->is_on_device());
  EXPECT_TRUE(back->outlives_fork());
  expect_same(stored_value(*back).value.tensors[0], batch[1]);
  const auto there = rows[1]->on("cpu");
  expect_same(stored_value(*there).value.tensors[0], batch[1]);
  EXPECT_EQ(there->write(codec::Codec::kNone).payload.view(),
            rows[1]->write(codec::Codec::kNone).payload.view());
}

TEST(ResidentRowsTest, they_mix_with_rows_that_are_stored_computed_and_repeated) {
  const at::Tensor batch = at::randn({5, 3});
  const auto rows = cut(batch);
  RowsOutput output(6, /*is_pinned=*/true);
  StoredRow stored;
  stored.row = 3;
  stored.layout = &rows[3]->layout();
  stored.bytes = rows[3]->bytes();
  output.add_stored({stored}, [](std::size_t, void*) { return Status::ok(); });
  output.add_computed({0, 2}, *together_on_device(on_device({rows[0], rows[2]}), kHost));
  output.add_computed({1, 4}, flat_of({at::stack({batch[1], batch[4]})}));
  output.repeat(5, 2);
  const auto together = output.together(kHost);
  ASSERT_TRUE(together.has_value());
  expect_same(together->tensors[0], at::cat({batch, batch.slice(0, 2, 3)}));
}

}  // namespace
}  // namespace modcache::tensor
