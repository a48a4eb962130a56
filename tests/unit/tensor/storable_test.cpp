// SPDX-License-Identifier: Apache-2.0
#include "tensor/storable.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "support/whole_values.h"

namespace modcache::tensor {
namespace {

using cache::StoredDtype;
using codec::Codec;
using testing::all_dtypes;
using testing::expect_same;
using testing::matrix_of;
using testing::value_of;
using testing::written_and_read;

TEST(WhyNotStorableTest, names_what_no_tier_can_hold) {
  EXPECT_EQ(why_not_storable(at::ones({2})), nullptr);
  EXPECT_EQ(why_not_storable(at::ones({2, 3}).t()), nullptr);
  EXPECT_STREQ(why_not_storable(at::Tensor()), "undefined");
  EXPECT_STREQ(why_not_storable(at::ones({2}).to_sparse()), "not dense (sparse or opaque)");
  EXPECT_STREQ(why_not_storable(at::empty({2}, at::kMeta)), "without data");
  EXPECT_STREQ(why_not_storable(at::quantize_per_tensor(at::ones({2}), 1.0, 0, at::kQInt8)),
               "quantized");
  EXPECT_EQ(why_not_storable(at::ones(std::vector<std::int64_t>(64, 1))), nullptr);
  EXPECT_STREQ(why_not_storable(at::ones(std::vector<std::int64_t>(65, 1))),
               "of more than 64 dimensions");
}

TEST(NarrowedTest, floats_take_half_the_bytes_and_come_back_in_their_own_dtype) {
  for (const auto& [setting, dtype] : {std::pair(StoredDtype::kFloat16, at::kHalf),
                                       std::pair(StoredDtype::kBfloat16, at::kBFloat16)}) {
    for (const at::ScalarType original_dtype : {at::kFloat, at::kDouble}) {
      const at::Tensor original = at::linspace(-3, 3, 1000).to(original_dtype);
      const auto value = value_of({original}, setting);
      EXPECT_EQ(value->write(Codec::kNone).payload.size_bytes, 2000u);
      const at::Tensor expected = original.to(dtype).to(original_dtype);
      expect_same(value->hand_out_tensor(std::nullopt), expected);
      for (const Codec codec : {Codec::kNone, Codec::kZstd}) {
        expect_same(written_and_read(*value, codec)->hand_out_tensor(std::nullopt), expected);
      }
    }
  }
}

TEST(NarrowedTest, what_is_no_wider_float_is_kept_as_it_is) {
  for (const at::ScalarType dtype : all_dtypes()) {
    if (dtype == at::kFloat || dtype == at::kDouble) continue;
    const at::Tensor original = matrix_of(dtype);
    const auto value = value_of({original}, StoredDtype::kFloat16);
    expect_same(written_and_read(*value)->hand_out_tensor(std::nullopt), original);
  }
}

TEST(NarrowedTest, a_number_that_would_become_infinite_keeps_its_tensor_wide) {
  const double infinity = std::numeric_limits<double>::infinity();
  const at::Tensor fits = at::tensor({65504.0, -65504.0, infinity, -infinity}, at::kFloat);
  const at::Tensor overflows = at::tensor({1.0 / 3, 65520.0}, at::kFloat);
  const auto value = value_of({fits, overflows}, StoredDtype::kFloat16);
  EXPECT_EQ(value->layout()->places()[0].stored_dtype, at::kHalf);
  EXPECT_EQ(value->layout()->places()[1].stored_dtype, at::kFloat);
  expect_same(value->hand_out(std::nullopt)[0], fits);
  expect_same(value->hand_out(std::nullopt)[1], overflows);
  const at::Tensor nan = at::full({1}, std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(copy_to_store(nan, StoredDtype::kFloat16).scalar_type(), at::kHalf);
  EXPECT_TRUE(at::equal(copy_to_store(at::full({1}, 3.4e38), StoredDtype::kBfloat16),
                        at::full({1}, 3.4e38)));
}

TEST(StorableTest, a_copy_is_ordinary_and_contiguous_whatever_the_tensor_is) {
  const c10::InferenceMode inference;
  const at::Tensor original = at::arange(6).view({2, 3}).t();
  const at::Tensor copy = copy_to_store(original, StoredDtype::kKeep);
  EXPECT_TRUE(at::equal(copy, original));
  EXPECT_TRUE(copy.is_contiguous());
  EXPECT_FALSE(copy.is_inference());
  EXPECT_FALSE(copy.is_alias_of(original));
}

TEST(StorableTest, a_copy_of_plain_memory_is_ordinary_too) {
  for (const std::int64_t rows : {0, 1, 3, 1 << 15}) {  // the last is copied by torch
    const c10::InferenceMode inference;
    const at::Tensor original = at::arange(rows * 4, at::kFloat).view({rows, 4});
    const at::Tensor copy = copy_to_store(original, StoredDtype::kKeep);
    EXPECT_TRUE(at::equal(copy, original)) << rows;
    EXPECT_EQ(copy.sizes(), original.sizes());
    EXPECT_FALSE(copy.is_inference());
    EXPECT_FALSE(copy.requires_grad());
    EXPECT_FALSE(copy.is_alias_of(original));
  }
  const at::Tensor conjugate = at::complex(at::ones({2}), at::ones({2})).conj();
  EXPECT_TRUE(at::equal(copy_to_store(conjugate, StoredDtype::kKeep), conjugate));
  EXPECT_FALSE(copy_to_store(conjugate, StoredDtype::kKeep).is_conj());
}

TEST(StorableTest, a_tensor_without_its_elements_has_no_data) {
  at::Tensor freed = at::ones({4, 4});
  const at::Tensor row = freed[1];
  EXPECT_EQ(why_not_storable(row), nullptr);
  freed.storage().unsafeGetStorageImpl()->set_nbytes(7 * sizeof(float));
  EXPECT_STREQ(why_not_storable(row), "without data");
  EXPECT_STREQ(why_not_storable(freed), "without data");
  EXPECT_EQ(why_not_storable(freed[0]), nullptr);
  EXPECT_EQ(why_not_storable(freed.slice(0, 2, 2)), nullptr) << "it has no element";
  EXPECT_EQ(why_not_storable(at::_efficientzerotensor({3}, at::kFloat)), nullptr);
  EXPECT_EQ(why_not_storable(at::ones({1}).expand({1 << 20})), nullptr);
}

TEST(StorableTest, every_dtype_has_operable_bits) {
  for (const at::ScalarType dtype : all_dtypes()) {
    const at::Tensor operable = as_operable(matrix_of(dtype));
    EXPECT_EQ(operable.element_size(), c10::elementSize(dtype));
    EXPECT_TRUE(at::equal(operable, operable.clone())) << dtype;
  }
}

}  // namespace
}  // namespace modcache::tensor
