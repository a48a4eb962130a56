// SPDX-License-Identifier: Apache-2.0
//
// RowsOutput, and stored rows that no module gave together with the others.
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <vector>

#include "support/value_tensors.h"
#include "tensor/row_value.h"
#include "tensor/rows_output.h"

namespace modcache::tensor {
namespace {

using testing::cut;
using testing::flat_of;

StoredRow stored(std::size_t row, const RowValue& value) {
  StoredRow stored;
  stored.row = row;
  stored.layout = &value.layout();
  stored.bytes = value.bytes();
  return stored;
}

std::vector<Flat> odd_ones(const at::Tensor& x) {
  return {flat_of({x.to(at::kDouble)}), flat_of({x, x}), flat_of({x.view({1, 2, 1})})};
}

const RowsOutput::ReadStored kReadNothing = [](std::size_t, void*) { return Status::not_found(); };

TEST(OddRowsTest, are_refused_where_most_are_of_another_kind) {
  const at::Tensor x = at::ones({1, 2});
  const auto usual = cut(flat_of({x}))[0];
  for (const Flat& flat : odd_ones(x)) {
    const auto odd = cut(flat)[0];
    RowsOutput output(3);
    const auto failures =
        output.add_stored({stored(0, *odd), stored(1, *usual), stored(2, *usual)}, kReadNothing);
    ASSERT_EQ(failures.size(), 1u);
    EXPECT_EQ(failures[0].place, 0u);
    EXPECT_EQ(failures[0].status.code(), StatusCode::kCorruption);
    output.add_computed({0}, flat_of({x}));
    EXPECT_FALSE(output.has_odd_stored_rows());
    EXPECT_TRUE(output.together(at::Device(at::kCPU)).has_value());
  }
}

TEST(OddRowsTest, are_told_where_the_module_gives_another_kind) {
  const at::Tensor x = at::ones({1, 2});
  for (const Flat& flat : odd_ones(x)) {
    const auto odd = cut(flat)[0];
    RowsOutput output(2);
    EXPECT_TRUE(output.add_stored({stored(0, *odd)}, kReadNothing).empty());
    output.add_computed({1}, flat_of({x}));
    EXPECT_TRUE(output.has_odd_stored_rows());
  }
}

}  // namespace
}  // namespace modcache::tensor
