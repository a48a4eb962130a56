// SPDX-License-Identifier: Apache-2.0
#include "tensor/output_buffer.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "support/value_tensors.h"
#include "tensor/rows.h"

namespace modcache::tensor {
namespace {

using testing::cut;
using testing::dtypes_named;

TEST(OutputBufferTest, gives_tensors_of_every_size_and_dtype) {
  for (const at::ScalarType dtype :
       dtypes_named({"float32", "bool", "complex128", "float8_e5m2"})) {
    for (const auto& sizes : std::vector<std::vector<std::int64_t>>{
             {}, {0}, {3, 0, 2}, {7}, {1000, 1000}, {3, 1 << 20}}) {
      const at::Tensor tensor = output_tensor(sizes, dtype);
      EXPECT_EQ(tensor.sizes(), sizes);
      EXPECT_EQ(tensor.scalar_type(), dtype);
      EXPECT_TRUE(tensor.is_contiguous());
      if (tensor.nbytes() != 0) std::memset(tensor.data_ptr(), 1, tensor.nbytes());
      EXPECT_GE(tensor.storage().nbytes(), tensor.nbytes());
    }
  }
}

TEST(OutputBufferTest, memory_comes_back_when_its_tensor_dies_and_never_before) {
  const std::vector<std::int64_t> sizes{1000, 1000};
  at::Tensor first = output_tensor(sizes, at::kFloat);
  const void* const place = first.data_ptr();
  const at::Tensor view = first.select(0, 500);
  const at::Tensor second = output_tensor(sizes, at::kFloat);
  EXPECT_NE(second.data_ptr(), place);
  first = at::Tensor();
  EXPECT_NE(output_tensor(sizes, at::kFloat).data_ptr(), place) << "a view still lives";
  first = at::Tensor();
  const_cast<at::Tensor&>(view) = at::Tensor();
  EXPECT_EQ(output_tensor(sizes, at::kFloat).data_ptr(), place);
}

TEST(OutputBufferTest, a_block_is_not_given_to_what_needs_more_or_far_less) {
  {
    // Blocks that other tests left make room for these.
    std::vector<at::Tensor> small(16);
    for (at::Tensor& tensor : small) tensor = output_tensor({200'000}, at::kByte);
  }
  void* place = nullptr;
  {
    const at::Tensor tensor = output_tensor({5'000'000}, at::kByte);
    place = tensor.data_ptr();
  }
  const at::Tensor larger = output_tensor({9'000'000}, at::kByte);
  EXPECT_NE(larger.data_ptr(), place);
  const at::Tensor smaller = output_tensor({200'000}, at::kByte);
  EXPECT_NE(smaller.data_ptr(), place);
  EXPECT_EQ(output_tensor({4'500'000}, at::kByte).data_ptr(), place);
}

TEST(OutputBufferTest, many_tensors_at_once_have_memory_of_their_own) {
  std::vector<at::Tensor> tensors;
  for (int round = 0; round < 3; ++round) {
    tensors.clear();
    for (int i = 0; i < 20; ++i) {
      tensors.push_back(output_tensor({300'000 + 1000 * i}, at::kByte));
      tensors.back().fill_(i);
    }
    for (int i = 0; i < 20; ++i) {
      EXPECT_TRUE(tensors[static_cast<std::size_t>(i)].eq(i).all().item().toBool());
    }
  }
}

// ----- batches, which lie in such memory

class HandedOutBatchTest : public ::testing::Test {
 protected:
  at::Tensor batch() const {
    std::vector<StoredRow> stored(rows_.size());
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      stored[i].row = i;
      stored[i].layout = &rows_[i]->layout();
      stored[i].bytes = rows_[i]->bytes();
    }
    RowsOutput output(rows_.size());
    output.add_stored(stored, [](std::size_t, void*) { return Status::ok(); });
    return output.together(at::Device(at::kCPU))->tensors[0];
  }

  const at::Tensor original_ = at::randn({4, 100'000});  // large enough for a block of the pool
  const std::vector<std::shared_ptr<const RowValue>> rows_ = cut(original_);
};

TEST_F(HandedOutBatchTest, what_a_caller_does_to_it_reaches_no_stored_row_and_no_other_batch) {
  const at::Tensor kept = batch();
  batch().fill_(-1);
  batch().view({-1}).slice(0, 0, 9).zero_();
  batch().variable_data().mul_(2);
  std::memset(batch().data_ptr(), 0xff, original_.nbytes());
  batch().resize_({8, 200'000}).fill_(3);
  batch().resize_({1}).fill_(3);
  at::Tensor set = batch();
  set.set_(at::zeros({3})).fill_(1);
  EXPECT_TRUE(at::equal(kept, original_));
  EXPECT_TRUE(at::equal(batch(), original_));
}

TEST_F(HandedOutBatchTest, is_an_ordinary_tensor_even_under_inference_mode) {
  at::Tensor made;
  {
    const c10::InferenceMode inference(true);
    made = batch();
  }
  EXPECT_FALSE(made.is_inference());
  at::Tensor weight = at::ones_like(original_).requires_grad_();
  (made * weight).sum().backward();
  EXPECT_TRUE(at::equal(weight.grad(), original_));
}

TEST_F(HandedOutBatchTest, a_tensor_that_grew_keeps_what_it_had) {
  at::Tensor grown = batch();
  grown.resize_({5, 100'000});
  const at::Tensor other = batch();
  grown.slice(0, 4, 5).fill_(1);
  EXPECT_TRUE(at::equal(grown.slice(0, 0, 4), original_));
  EXPECT_TRUE(at::equal(other, original_));
}

}  // namespace
}  // namespace modcache::tensor
