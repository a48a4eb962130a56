// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/whole_values.h"
#include "tensor/row_value.h"
#include "tensor/stored_format.h"

namespace modcache::tensor {
namespace {

using testing::cut;
using testing::expect_same;
using testing::value_of;
using testing::with_number;

TEST(StoredValueTest, gives_a_whole_value_as_tensors_of_the_callers_own) {
  const auto value = value_of({at::ones({2}), at::zeros({3})});
  const StoredValue stored = stored_value(*value);
  EXPECT_EQ(stored.layout, value->layout());
  EXPECT_EQ(stored.value.root, value->root());
  expect_same(stored.value.tensors[1], at::zeros({3}));
  stored.value.tensors[0].fill_(7);
  expect_same(value->hand_out(std::nullopt)[0], at::ones({2}));
}

TEST(StoredValueTest, gives_a_row_with_what_is_no_tensor_wherever_it_lies) {
  const auto row = cut(with_number(at::arange(6).view({2, 3}), 7))[1];
  for (const auto& value : {row, row->on("cpu")}) {
    const StoredValue stored = stored_value(*value);
    EXPECT_EQ(stored.layout.get(), &row->layout());
    EXPECT_EQ(stored.value.root.children[1].integer, 7);
    expect_same(stored.value.tensors[0], at::tensor({3, 4, 5}, at::kLong));
  }
}

}  // namespace
}  // namespace modcache::tensor
