// SPDX-License-Identifier: Apache-2.0
#include "tensor/dim_order.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "support/value_tensors.h"

namespace modcache::tensor {
namespace {

using testing::expect_same;

// Every order of dimensions, of sizes among which are 1 and equal ones.
std::vector<at::Tensor> tensors_of_every_order() {
  std::vector<at::Tensor> tensors;
  for (const auto& sizes :
       std::vector<std::vector<std::int64_t>>{{2, 3, 4}, {3, 1, 4}, {1, 3, 2}, {2, 2, 2}}) {
    std::vector<std::int64_t> order{0, 1, 2};
    do {
      tensors.push_back(at::arange(sizes[0] * sizes[1] * sizes[2]).view(sizes).permute(order));
    } while (std::next_permutation(order.begin(), order.end()));
  }
  return tensors;
}

TEST(DimOrderTest, goes_from_the_outermost_to_the_innermost) {
  const at::Tensor image = at::zeros({2, 3, 4, 5});
  EXPECT_EQ(dim_order_of(image), DimOrder{});
  EXPECT_EQ(dim_order_of(image.contiguous(at::MemoryFormat::ChannelsLast)), (DimOrder{0, 2, 3, 1}));
  EXPECT_EQ(dim_order_of(image.transpose(0, 1)), (DimOrder{1, 0, 2, 3}));
}

TEST(DimOrderTest, restores_the_strides_of_every_dense_tensor) {
  for (const at::Tensor& tensor : tensors_of_every_order()) {
    const DimOrder order = dim_order_of(tensor);
    const at::Tensor memory = in_memory_order(tensor, order);
    EXPECT_TRUE(memory.is_contiguous());
    const at::Tensor restored = memory.clone(at::MemoryFormat::Contiguous);
    restore_logical_order(restored, order);
    EXPECT_EQ(restored.strides(), tensor.strides()) << tensor.sizes();
    expect_same(restored, tensor);
    EXPECT_FALSE(restored.is_view());
    expect_same(in_logical_order(memory, order), tensor);
  }
}

TEST(DimOrderTest, is_that_of_a_row_major_tensor_where_elements_overlap_or_have_gaps) {
  const at::Tensor square = at::zeros({4, 4});
  for (const at::Tensor& tensor :
       {square.slice(1, 0, 4, 2).t(), at::zeros({1, 3}).expand({2, 3}).t(),
        at::zeros({2, 0, 3}).transpose(0, 2), at::zeros({}),
        at::zeros({4, 1}).as_strided({4, 1}, {1, 9})}) {
    EXPECT_EQ(dim_order_of(tensor), DimOrder{}) << tensor.strides();
  }
}

TEST(DimOrderTest, of_a_row_is_that_of_its_batch_without_the_first_dimension) {
  for (const at::Tensor& tensor : tensors_of_every_order()) {
    TensorLayout row;
    row.sizes = tensor.sizes().slice(1).vec();
    set_dim_order(row, tensor, /*is_row=*/true);
    const DimOrder batch = batch_order(row);
    EXPECT_EQ(batch, dim_order_of(tensor)) << tensor.sizes() << tensor.strides();
    const DimOrder rows_first = rows_first_order(row);
    EXPECT_TRUE(rows_first.empty() || rows_first[0] == 0);
    const at::Tensor rows = in_memory_order(tensor, rows_first).contiguous();
    const at::Tensor together = reordered(rows.clone(), rows_first, batch);
    EXPECT_EQ(together.strides(), tensor.strides());
    expect_same(together, tensor);
  }
}

}  // namespace
}  // namespace modcache::tensor
