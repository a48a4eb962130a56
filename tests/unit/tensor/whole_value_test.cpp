// SPDX-License-Identifier: Apache-2.0
#include "tensor/whole_value.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "support/whole_values.h"

namespace modcache::tensor {
namespace {

using cache::StoredDtype;
using codec::Codec;
using testing::flat_of;
using testing::value_of;

const at::Device kInputDevice{at::kCPU};
// Stands in for an accelerator: a device of its own that every machine has.
const at::Device kMeta{at::kMeta};

// ----- handing out: a tensor that is copied for its caller, and one that is lent copy-on-write

class HandOutTest : public ::testing::TestWithParam<std::int64_t> {
 protected:
  const at::Tensor original_ = at::arange(GetParam(), at::kFloat);
};
INSTANTIATE_TEST_SUITE_P(Sizes, HandOutTest, ::testing::Values(1, 7, 4096, 4097, 100'000));

TEST_P(HandOutTest, gives_the_value) {
  EXPECT_TRUE(at::equal(value_of(original_)->hand_out_tensor(kInputDevice), original_));
}

TEST_P(HandOutTest, gives_the_strides_of_a_dense_value_and_no_view) {
  const at::Tensor image = original_.view({1, -1, 1}).expand({2, GetParam(), 3}).contiguous();
  for (const auto dtype : {StoredDtype::kKeep, StoredDtype::kBfloat16}) {
    for (const at::Tensor& tensor : {image, image.transpose(1, 2), image.permute({2, 0, 1})}) {
      const auto value = value_of({tensor}, dtype);
      for (const auto& one : {value, testing::written_and_read(*value, Codec::kZstd)}) {
        const at::Tensor handed = one->hand_out_tensor(kInputDevice);
        EXPECT_EQ(handed.strides(), tensor.strides());
        EXPECT_FALSE(handed.is_view());
        EXPECT_TRUE(at::allclose(handed, tensor, 0.01));
      }
    }
  }
}

TEST_P(HandOutTest, what_becomes_of_the_result_changes_no_value) {
  at::Tensor result = original_.clone();
  const auto value = value_of(result);
  result.fill_(-1);
  EXPECT_TRUE(at::equal(value->hand_out_tensor(kInputDevice), original_));
}

TEST_P(HandOutTest, what_a_caller_writes_changes_no_value_and_no_other_callers_tensor) {
  for (const auto dtype : {StoredDtype::kKeep, StoredDtype::kBfloat16}) {
    const auto value = value_of({original_}, dtype);
    const at::Tensor kept = value->hand_out_tensor(kInputDevice);
    const at::Tensor expected = kept.clone();
    value->hand_out_tensor(kInputDevice).add_(1);
    value->hand_out_tensor(kInputDevice).view({-1}).slice(0, 0, 1).zero_().sub_(5);
    value->hand_out_tensor(kInputDevice).variable_data().fill_(7);
    std::memset(value->hand_out_tensor(kInputDevice).data_ptr(), 0xff, original_.nbytes());
    EXPECT_TRUE(at::equal(kept, expected));
    EXPECT_TRUE(at::equal(value->hand_out_tensor(kInputDevice), expected));
  }
}

TEST_P(HandOutTest, what_is_handed_out_outlives_the_value) {
  auto value = value_of(original_);
  const at::Tensor kept = value->hand_out_tensor(kInputDevice);
  value.reset();
  EXPECT_TRUE(at::equal(kept, original_));
}

TEST_P(HandOutTest, is_an_ordinary_tensor_whatever_mode_it_was_made_and_asked_for_in) {
  for (const auto dtype : {StoredDtype::kKeep, StoredDtype::kBfloat16}) {
    std::shared_ptr<const WholeValue> value;
    at::Tensor handed_out;
    {
      const c10::InferenceMode inference(true);
      const at::Tensor result = original_ * 1;
      ASSERT_TRUE(result.is_inference());
      value = value_of({result}, dtype);
      handed_out = value->hand_out_tensor(kInputDevice);
    }
    for (const at::Tensor& tensor : {handed_out, value->hand_out_tensor(kInputDevice)}) {
      EXPECT_FALSE(tensor.is_inference());
      EXPECT_FALSE(tensor.requires_grad());
      at::Tensor weight = at::ones_like(original_).requires_grad_(true);
      (tensor * weight).sum().backward();
      EXPECT_TRUE(at::equal(weight.grad(), tensor));
    }
  }
}

TEST_P(HandOutTest, carries_no_graph_of_the_run_that_made_it) {
  const at::Tensor weight = at::ones_like(original_).requires_grad_(true);
  const at::Tensor handed_out = value_of(original_ * weight)->hand_out_tensor(kInputDevice);
  EXPECT_FALSE(handed_out.requires_grad());
  EXPECT_EQ(handed_out.grad_fn(), nullptr);
}

TEST(WholeValueTest, a_result_beside_its_input_follows_the_input_of_the_hit) {
  const Flat result = flat_of({at::ones({3}), at::ones({2})});
  const auto devices = [&](std::optional<at::Device> stored, std::optional<at::Device> hit) {
    const auto value = WholeValue::copy_of(result, stored, StoredDtype::kFloat16);
    const auto tensors = value->hand_out(hit);
    EXPECT_EQ(tensors[0].device(), tensors[1].device());
    EXPECT_EQ(tensors[0].scalar_type(), at::kFloat);
    return tensors[0].device();
  };
  EXPECT_EQ(devices(kInputDevice, kMeta), kMeta);
  EXPECT_EQ(devices(kInputDevice, kInputDevice), kInputDevice);
  EXPECT_EQ(devices(kInputDevice, std::nullopt), kInputDevice);
  EXPECT_EQ(devices(kMeta, kMeta), kInputDevice) << "it lay elsewhere than its input";
  EXPECT_EQ(devices(std::nullopt, kMeta), kInputDevice);
}

// ----- values that are handed out once

class ReadOnceTest : public ::testing::TestWithParam<StoredDtype> {
 protected:
  // Reads what was stored of `tensor`, as a directory would.
  std::shared_ptr<const WholeValue> read_once(const at::Tensor& tensor,
                                              Codec codec = Codec::kNone) {
    written_ = value_of({tensor}, GetParam())->write(codec);
    const std::string_view stored = written_.payload.view();
    auto read = WholeValue::read_once(
        Layout::decode(written_.header).value(), stored.size(),
        [=](void* target) {
          std::memcpy(target, stored.data(), stored.size());
          return Status::ok();
        },
        [this, stored]() -> Result<std::shared_ptr<std::byte>> {
          ++maps_;
          std::shared_ptr<std::byte[]> copy(new std::byte[stored.size()]);
          std::memcpy(copy.get(), stored.data(), stored.size());
          copy_ = copy.get();
          return std::shared_ptr<std::byte>(copy, copy.get());
        });
    EXPECT_TRUE(read.is_ok()) << read.status().message();
    return std::static_pointer_cast<const WholeValue>(std::move(read).value());
  }

  cache::Written written_;
  int maps_ = 0;
  const void* copy_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Dtypes, ReadOnceTest,
                         ::testing::Values(StoredDtype::kKeep, StoredDtype::kBfloat16));

TEST_P(ReadOnceTest, gives_the_value_whatever_its_size_and_codec) {
  for (const std::int64_t size : {1, 5000, 100'000, 600'000}) {
    for (const Codec codec : {Codec::kNone, Codec::kZstd}) {
      const at::Tensor tensor = at::arange(size, at::kFloat).div_(size).view({1, size}).t();
      const auto value = read_once(tensor, codec);
      const at::Tensor handed = value->hand_out_tensor(kInputDevice);
      EXPECT_EQ(handed.strides(), tensor.strides());
      EXPECT_FALSE(handed.is_view());
      EXPECT_TRUE(at::allclose(handed, tensor, 0.01));
    }
  }
}

TEST_P(ReadOnceTest, the_tensor_outlives_the_value_and_may_grow) {
  auto value = read_once(at::ones({600'000}));
  at::Tensor handed = value->hand_out_tensor(kInputDevice);
  value.reset();
  handed.add_(1);
  handed.resize_({700'000});
  EXPECT_TRUE(at::equal(handed.slice(0, 0, 600'000), at::full({600'000}, 2.0)));
}

TEST_P(ReadOnceTest, a_large_value_stays_where_it_was_mapped) {
  const bool is_converted = GetParam() != StoredDtype::kKeep;
  const at::Tensor handed = read_once(at::ones({600'000}))->hand_out_tensor(kInputDevice);
  EXPECT_EQ(maps_, 1);
  EXPECT_EQ(handed.data_ptr() == copy_, !is_converted);
  read_once(at::ones({1000}));
  EXPECT_EQ(maps_, 1);
}

TEST_P(ReadOnceTest, is_not_given_twice) {
  const auto value = read_once(at::ones({3}));
  const at::Tensor handed = value->hand_out_tensor(kInputDevice);
  if (GetParam() != StoredDtype::kKeep) return;  // a converted copy
  EXPECT_THROW(value->hand_out_tensor(kInputDevice), c10::Error);
}

TEST(WholeValueTest, only_the_viewed_part_of_a_storage_is_kept) {
  const at::Tensor big = at::ones({1000, 1000});
  EXPECT_EQ(value_of(big.select(0, 3))->write(Codec::kNone).payload.size_bytes, 4000u);
}

}  // namespace
}  // namespace modcache::tensor
