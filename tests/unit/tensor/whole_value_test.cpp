// SPDX-License-Identifier: Apache-2.0
//
// A value as the tiers hold it, with what it is made of: storable.h, layout.h, payload.h,
// stored_value.h. One file, since torch's headers take most of a minute to compile.
#include "tensor/whole_value.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "support/value_tensors.h"
#include "tensor/payload.h"
#include "tensor/storable.h"
#include "tensor/stored_format.h"
#include "tensor/stored_value.h"

namespace modcache::tensor {
namespace {

using cache::StoredDtype;
using codec::Codec;
using modcache::testing::all_dtypes;
using modcache::testing::expect_same;
using modcache::testing::flat_of;
using modcache::testing::matrix_of;

const at::Device kCpu{at::kCPU};
// Stands in for an accelerator: a device of its own that every machine has.
const at::Device kMeta{at::kMeta};

std::shared_ptr<const WholeValue> value_of(std::vector<at::Tensor> tensors,
                                           StoredDtype dtype = StoredDtype::kKeep) {
  return WholeValue::copy_of(flat_of(std::move(tensors)), kCpu, dtype);
}
std::shared_ptr<const WholeValue> value_of(const at::Tensor& tensor) {
  return value_of(std::vector<at::Tensor>{tensor});
}

class StoredText final : public store::FoundEntry {
 public:
  explicit StoredText(std::string payload) : payload_(std::move(payload)) {}
  const std::string& header() const override { return header_; }
  std::size_t payload_size_bytes() const override { return payload_.size(); }
  store::Sequence sequence() const override { return 1; }
  std::int64_t run_us() const override { return 0; }
  std::int64_t stored_at_us() const override { return 0; }
  Status read_payload(void* target) const override {
    std::memcpy(target, payload_.data(), payload_.size());
    return status;
  }
  Status status;

 private:
  const std::string header_;
  const std::string payload_;
};

std::shared_ptr<const WholeValue> written_and_read(const cache::Value& value,
                                                   Codec codec = Codec::kNone) {
  const cache::Written written = value.write(codec);
  const StoredText stored{std::string(written.payload.view())};
  auto read = StoredFormat().read(written.header, stored);
  EXPECT_TRUE(read.is_ok()) << read.status().message();
  return std::static_pointer_cast<const WholeValue>(std::move(read).value());
}

// ----- handing out: a tensor that is copied for its caller, and one that is lent copy-on-write

class HandOutTest : public ::testing::TestWithParam<std::int64_t> {
 protected:
  const at::Tensor original_ = at::arange(GetParam(), at::kFloat);
};
INSTANTIATE_TEST_SUITE_P(Sizes, HandOutTest, ::testing::Values(1, 7, 4096, 4097, 100'000));

TEST_P(HandOutTest, gives_the_value) {
  EXPECT_TRUE(at::equal(value_of(original_)->hand_out_tensor(kCpu), original_));
}

TEST_P(HandOutTest, what_becomes_of_the_result_changes_no_value) {
  at::Tensor result = original_.clone();
  const auto value = value_of(result);
  result.fill_(-1);
  EXPECT_TRUE(at::equal(value->hand_out_tensor(kCpu), original_));
}

TEST_P(HandOutTest, what_a_caller_writes_changes_no_value_and_no_other_callers_tensor) {
  for (const auto dtype : {StoredDtype::kKeep, StoredDtype::kBfloat16}) {
    const auto value = value_of({original_}, dtype);
    const at::Tensor kept = value->hand_out_tensor(kCpu);
    const at::Tensor expected = kept.clone();
    value->hand_out_tensor(kCpu).add_(1);
    value->hand_out_tensor(kCpu).view({-1}).slice(0, 0, 1).zero_().sub_(5);
    value->hand_out_tensor(kCpu).variable_data().fill_(7);
    std::memset(value->hand_out_tensor(kCpu).data_ptr(), 0xff, original_.nbytes());
    EXPECT_TRUE(at::equal(kept, expected));
    EXPECT_TRUE(at::equal(value->hand_out_tensor(kCpu), expected));
  }
}

TEST_P(HandOutTest, what_is_handed_out_outlives_the_value) {
  auto value = value_of(original_);
  const at::Tensor kept = value->hand_out_tensor(kCpu);
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
      handed_out = value->hand_out_tensor(kCpu);
    }
    for (const at::Tensor& tensor : {handed_out, value->hand_out_tensor(kCpu)}) {
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
  const at::Tensor handed_out = value_of(original_ * weight)->hand_out_tensor(kCpu);
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
  EXPECT_EQ(devices(kCpu, kMeta), kMeta);
  EXPECT_EQ(devices(kCpu, kCpu), kCpu);
  EXPECT_EQ(devices(kCpu, std::nullopt), kCpu);
  EXPECT_EQ(devices(kMeta, kMeta), kCpu) << "it lay elsewhere than its input";
  EXPECT_EQ(devices(std::nullopt, kMeta), kCpu);
}

TEST(WholeValueTest, only_the_viewed_part_of_a_storage_is_kept) {
  const at::Tensor big = at::ones({1000, 1000});
  EXPECT_EQ(value_of(big.select(0, 3))->write(Codec::kNone).payload.size_bytes, 4000u);
}

// ----- written and read

TEST(StoredFormatTest, reads_back_every_dtype_and_shape_bit_for_bit) {
  for (const at::ScalarType dtype : all_dtypes()) {
    const at::Tensor matrix = matrix_of(dtype);
    for (const at::Tensor& original :
         {matrix, matrix.select(0, 1).select(0, 2), matrix.slice(0, 2, 2), matrix.t(),
          matrix.slice(0, 0, 1).expand({2, 3}), matrix.slice(1, 0, 3, 2)}) {
      for (const Codec codec : {Codec::kNone, Codec::kZstd}) {
        const auto value = value_of(original);
        expect_same(value->hand_out_tensor(kCpu), original);
        const auto again = written_and_read(*value, codec);
        ASSERT_TRUE(again->is_lone_tensor());
        expect_same(again->hand_out_tensor(kCpu), original);
        EXPECT_EQ(again->write(Codec::kNone).header, value->write(Codec::kNone).header);
      }
    }
  }
}

TEST(StoredFormatTest, conjugated_negated_and_zero_tensors_are_read_back_as_what_they_show) {
  const at::Tensor complex = at::randn({3}, at::kComplexFloat);
  for (const at::Tensor& original :
       {complex.conj(), at::imag(complex.conj()), complex.to(at::kComplexHalf).conj()}) {
    const at::Tensor shown = original.resolve_conj().resolve_neg();
    expect_same(written_and_read(*value_of(original))->hand_out_tensor(kCpu), shown);
  }
  expect_same(written_and_read(*value_of(at::_efficientzerotensor({3})))->hand_out_tensor(kCpu),
              at::zeros({3}));
}

TEST(StoredFormatTest, reads_back_several_tensors_with_plain_values_between_them) {
  for (const Codec codec : {Codec::kNone, Codec::kZstd}) {
    Flat original = flat_of({at::arange(3, at::kByte), at::empty({0, 2}), at::ones({1000}),
                             at::full({}, 7, at::kLong), at::ones({2}, at::kBool)});
    original.root.children[1].kind = Node::Kind::kTensor;
    Node text;
    text.kind = Node::Kind::kString;
    text.text = "between";
    original.root.children.insert(original.root.children.begin() + 2, text);
    const auto value = WholeValue::copy_of(original, kCpu, StoredDtype::kKeep);
    const auto again = written_and_read(*value, codec);
    EXPECT_EQ(again->root(), original.root);
    const auto tensors = again->hand_out(kCpu);
    ASSERT_EQ(tensors.size(), original.tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) expect_same(tensors[i], original.tensors[i]);
  }
}

TEST(StoredFormatTest, reads_back_a_value_without_tensors) {
  Flat nothing;
  nothing.root.kind = Node::Kind::kNone;
  for (const Codec codec : {Codec::kNone, Codec::kZstd}) {
    const auto value = WholeValue::copy_of(nothing, kCpu, StoredDtype::kKeep);
    EXPECT_EQ(value->write(codec).payload.size_bytes, 0u);
    EXPECT_EQ(written_and_read(*value, codec)->root(), nothing.root);
  }
}

TEST(StoredFormatTest, tensors_lie_at_multiples_of_64_bytes) {
  const auto value = value_of({at::arange(3, at::kByte), at::empty({0}), at::ones({17})});
  const auto& places = value->layout()->places();
  EXPECT_EQ(places[0].offset, 0u);
  EXPECT_EQ(places[1].offset, 64u);
  EXPECT_EQ(places[2].offset, 64u);
  EXPECT_EQ(value->layout()->payload_size_bytes(), 64u + 68u);
  const cache::Written written = value->write(Codec::kNone);
  EXPECT_EQ(written.payload.view().substr(0, 64), std::string("\0\1\2", 3) + std::string(61, '\0'));
}

TEST(StoredFormatTest, a_codec_is_used_where_it_makes_the_value_smaller) {
  const auto zeros = value_of(at::zeros({10'000}));
  EXPECT_LT(zeros->write(Codec::kZstd).payload.size_bytes, 4'000u);
  EXPECT_EQ(zeros->write(Codec::kNone).payload.size_bytes, 40'000u);
  expect_same(written_and_read(*zeros, Codec::kZstd)->hand_out_tensor(kCpu), at::zeros({10'000}));
  const auto random = value_of(at::randint(256, {1000}, at::kByte));
  const cache::Written written = random->write(Codec::kZstd);
  EXPECT_EQ(written.payload.size_bytes, 1000u);
  EXPECT_EQ(written.header, random->write(Codec::kNone).header);
}

TEST(StoredFormatTest, the_most_that_the_codec_can_shrink_is_still_believed) {
  const at::Tensor zeros = at::zeros({8 << 20}, at::kDouble);
  const auto again = written_and_read(*value_of(zeros), Codec::kZstd);
  EXPECT_TRUE(at::equal(again->hand_out_tensor(kCpu), zeros));
}

TEST(StoredFormatTest, a_value_stored_under_another_codec_setting_is_read_all_the_same) {
  const auto value = value_of(at::zeros({1000}));
  const auto read = written_and_read(*written_and_read(*value, Codec::kZstd), Codec::kNone);
  expect_same(read->hand_out_tensor(kCpu), at::zeros({1000}));
}

TEST(StoredFormatTest, what_does_not_fit_together_is_corruption) {
  const auto read = [](const TensorLayout& tensor, std::size_t payload_size_bytes,
                       Codec codec = Codec::kNone) {
    ValueHeader header;
    header.codec = static_cast<std::uint8_t>(codec);
    header.tensors = {tensor};
    return StoredFormat()
        .read(encode_value_header(header), StoredText(std::string(payload_size_bytes, 'x')))
        .status()
        .code();
  };
  TensorLayout tensor;
  tensor.dtype = tensor.stored_dtype = static_cast<std::uint8_t>(at::kFloat);
  tensor.sizes = {2, 3};
  EXPECT_EQ(read(tensor, 24), StatusCode::kOk);
  EXPECT_EQ(read(tensor, 23), StatusCode::kCorruption);
  EXPECT_EQ(read(tensor, 25), StatusCode::kCorruption);
  EXPECT_EQ(read(tensor, 24, Codec::kZstd), StatusCode::kCorruption);
  EXPECT_NE(read(tensor, 24, static_cast<Codec>(9)), StatusCode::kOk);
  tensor.sizes = {std::int64_t{1} << 50, 4};  // believed, it would be allocated
  EXPECT_EQ(read(tensor, 24), StatusCode::kCorruption);
  EXPECT_EQ(read(tensor, 24, Codec::kZstd), StatusCode::kCorruption);
  tensor.sizes = {std::int64_t{1} << 62, 16};  // 2^68 bytes, which is 0 in 64 bits
  EXPECT_EQ(read(tensor, 0), StatusCode::kCorruption);
  tensor.sizes = {0, std::int64_t{1} << 62, std::int64_t{1} << 62};
  EXPECT_EQ(read(tensor, 0), StatusCode::kCorruption);
  tensor.sizes = {2, 3};
  constexpr int kBits8 = 21;  // which not every version of torch has
  for (const int dtype :
       {static_cast<int>(at::kQInt8), kBits8, static_cast<int>(at::ScalarType::Undefined),
        static_cast<int>(at::ScalarType::NumOptions), 255}) {
    TensorLayout other = tensor;
    other.dtype = static_cast<std::uint8_t>(dtype);
    EXPECT_EQ(read(other, 24), StatusCode::kCorruption) << dtype;
    other = tensor;
    other.stored_dtype = static_cast<std::uint8_t>(dtype);
    EXPECT_EQ(read(other, 24), StatusCode::kCorruption) << dtype;
  }
}

TEST(StoredFormatTest, a_payload_that_fails_its_check_is_no_value) {
  for (const auto& value : {value_of(at::ones({2})), value_of({at::ones({2}), at::ones({2})})}) {
    const cache::Written written = value->write(Codec::kNone);
    StoredText stored{std::string(written.payload.view())};
    EXPECT_TRUE(StoredFormat().read(written.header, stored).is_ok());
    stored.status = Status::corruption("checksum");
    EXPECT_EQ(StoredFormat().read(written.header, stored).status().code(), StatusCode::kCorruption);
    EXPECT_EQ(StoredFormat().read("", stored).status().code(), StatusCode::kCorruption);
  }
}

// ----- narrowed

TEST(NarrowedTest, floats_take_half_the_bytes_and_come_back_in_their_own_dtype) {
  for (const auto& [setting, dtype] : {std::pair(StoredDtype::kFloat16, at::kHalf),
                                       std::pair(StoredDtype::kBfloat16, at::kBFloat16)}) {
    for (const at::ScalarType original_dtype : {at::kFloat, at::kDouble}) {
      const at::Tensor original = at::linspace(-3, 3, 1000).to(original_dtype);
      const auto value = value_of({original}, setting);
      EXPECT_EQ(value->write(Codec::kNone).payload.size_bytes, 2000u);
      const at::Tensor expected = original.to(dtype).to(original_dtype);
      expect_same(value->hand_out_tensor(kCpu), expected);
      for (const Codec codec : {Codec::kNone, Codec::kZstd}) {
        expect_same(written_and_read(*value, codec)->hand_out_tensor(kCpu), expected);
      }
    }
  }
}

TEST(NarrowedTest, what_is_no_wider_float_is_kept_as_it_is) {
  for (const at::ScalarType dtype : all_dtypes()) {
    if (dtype == at::kFloat || dtype == at::kDouble) continue;
    const at::Tensor original = matrix_of(dtype);
    const auto value = value_of({original}, StoredDtype::kFloat16);
    expect_same(written_and_read(*value)->hand_out_tensor(kCpu), original);
  }
}

TEST(NarrowedTest, a_number_that_would_become_infinite_keeps_its_tensor_wide) {
  const double infinity = std::numeric_limits<double>::infinity();
  const at::Tensor fits = at::tensor({65504.0, -65504.0, infinity, -infinity}, at::kFloat);
  const at::Tensor overflows = at::tensor({1.0 / 3, 65520.0}, at::kFloat);
  const auto value = value_of({fits, overflows}, StoredDtype::kFloat16);
  EXPECT_EQ(value->layout()->places()[0].stored_dtype, at::kHalf);
  EXPECT_EQ(value->layout()->places()[1].stored_dtype, at::kFloat);
  expect_same(value->hand_out(kCpu)[0], fits);
  expect_same(value->hand_out(kCpu)[1], overflows);
  const at::Tensor nan = at::full({1}, std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(copy_to_store(nan, StoredDtype::kFloat16).scalar_type(), at::kHalf);
  EXPECT_TRUE(at::equal(copy_to_store(at::full({1}, 3.4e38), StoredDtype::kBfloat16),
                        at::full({1}, 3.4e38)));
}

TEST(NarrowedTest, the_tolerance_takes_in_what_was_rounded) {
  const at::Tensor original = at::ones({1});
  const auto tolerance = [&](StoredDtype dtype) {
    return value_of({original, original.to(at::kLong)}, dtype)->layout()->tolerance(0.001);
  };
  EXPECT_EQ(tolerance(StoredDtype::kKeep).relative, 0.001);
  EXPECT_EQ(tolerance(StoredDtype::kKeep).absolute, 0);
  EXPECT_EQ(tolerance(StoredDtype::kFloat16).relative, 0.001 + 1.0 / 2048);
  EXPECT_EQ(tolerance(StoredDtype::kBfloat16).relative, 0.001 + 1.0 / 256);
}

// ----- what can be stored

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

TEST(StoredValueTest, gives_a_whole_value_as_tensors_of_the_callers_own) {
  const auto value = value_of({at::ones({2}), at::zeros({3})});
  const StoredValue stored = stored_value(*value);
  EXPECT_EQ(stored.layout, value->layout());
  EXPECT_EQ(stored.value.root, value->root());
  expect_same(stored.value.tensors[1], at::zeros({3}));
  stored.value.tensors[0].fill_(7);
  expect_same(value->hand_out(kCpu)[0], at::ones({2}));
}

}  // namespace
}  // namespace modcache::tensor
