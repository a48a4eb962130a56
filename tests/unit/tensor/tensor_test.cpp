// SPDX-License-Identifier: Apache-2.0
//
// Both of the room's parts in one file: torch's headers take most of a minute to compile.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "tensor/input.h"
#include "tensor/tensor_header.h"
#include "tensor/tensor_value.h"

namespace modcache::tensor {
namespace {

const at::Device kCpu{at::kCPU};
// Stands in for an accelerator: a device of its own that every machine has.
const at::Device kMeta{at::kMeta};

std::shared_ptr<const TensorValue> value_of(const at::Tensor& tensor) {
  return TensorValue::copy_of(tensor, kCpu);
}

class StoredText final : public store::FoundEntry {
 public:
  explicit StoredText(std::string payload) : payload_(std::move(payload)) {}
  const std::string& header() const override { return header_; }
  std::size_t payload_size_bytes() const override { return payload_.size(); }
  store::Sequence sequence() const override { return 1; }
  std::int64_t run_us() const override { return 0; }
  Status read_payload(void* target) const override {
    std::memcpy(target, payload_.data(), payload_.size());
    return status;
  }
  Status status;

 private:
  const std::string header_;
  const std::string payload_;
};

// ----- values

// A tensor that is copied for its caller, and one that is lent copy-on-write.
class HandOutTest : public ::testing::TestWithParam<std::int64_t> {
 protected:
  const at::Tensor original_ = at::arange(GetParam(), at::kFloat);
};
INSTANTIATE_TEST_SUITE_P(Sizes, HandOutTest, ::testing::Values(1, 7, 4096, 4097, 100'000));

TEST_P(HandOutTest, gives_the_value) {
  EXPECT_TRUE(at::equal(value_of(original_)->hand_out(kCpu), original_));
}

TEST_P(HandOutTest, what_becomes_of_the_result_changes_no_value) {
  at::Tensor result = original_.clone();
  const auto value = value_of(result);
  result.fill_(-1);
  EXPECT_TRUE(at::equal(value->hand_out(kCpu), original_));
}

TEST_P(HandOutTest, what_a_caller_writes_changes_no_value_and_no_other_callers_tensor) {
  const auto value = value_of(original_);
  const at::Tensor kept = value->hand_out(kCpu);
  value->hand_out(kCpu).add_(1);
  value->hand_out(kCpu).view({-1}).slice(0, 0, 1).zero_().sub_(5);
  value->hand_out(kCpu).variable_data().fill_(7);
  std::memset(value->hand_out(kCpu).data_ptr(), 0xff, original_.nbytes());
  EXPECT_TRUE(at::equal(kept, original_));
  EXPECT_TRUE(at::equal(value->hand_out(kCpu), original_));
}

TEST_P(HandOutTest, what_is_handed_out_outlives_the_value) {
  auto value = value_of(original_);
  const at::Tensor kept = value->hand_out(kCpu);
  value.reset();
  EXPECT_TRUE(at::equal(kept, original_));
}

TEST_P(HandOutTest, is_an_ordinary_tensor_whatever_mode_it_was_made_and_asked_for_in) {
  std::shared_ptr<const TensorValue> value;
  at::Tensor handed_out;
  {
    const c10::InferenceMode inference(true);
    const at::Tensor result = original_ * 1;
    ASSERT_TRUE(result.is_inference());
    value = value_of(result);
    handed_out = value->hand_out(kCpu);
  }
  for (const at::Tensor& tensor : {handed_out, value->hand_out(kCpu)}) {
    EXPECT_FALSE(tensor.is_inference());
    EXPECT_FALSE(tensor.requires_grad());
    at::Tensor weight = at::ones_like(original_).requires_grad_(true);
    (tensor * weight).sum().backward();
    EXPECT_TRUE(at::equal(weight.grad(), original_));
  }
}

TEST_P(HandOutTest, carries_no_graph_of_the_run_that_made_it) {
  const at::Tensor weight = at::ones_like(original_).requires_grad_(true);
  const at::Tensor handed_out = value_of(original_ * weight)->hand_out(kCpu);
  EXPECT_FALSE(handed_out.requires_grad());
  EXPECT_EQ(handed_out.grad_fn(), nullptr);
}

TEST(TensorValueTest, a_result_beside_its_input_follows_the_input_of_the_hit) {
  const at::Tensor result = at::ones({3});
  EXPECT_EQ(TensorValue::copy_of(result, kCpu)->hand_out(kMeta).device(), kMeta);
  EXPECT_EQ(TensorValue::copy_of(result, kCpu)->hand_out(kCpu).device(), kCpu);
  EXPECT_EQ(TensorValue::copy_of(result, kCpu)->hand_out(std::nullopt).device(), kCpu);
}

TEST(TensorValueTest, a_result_that_lay_elsewhere_than_its_input_comes_back_on_the_cpu) {
  const at::Tensor result = at::ones({3});
  EXPECT_EQ(TensorValue::copy_of(result, kMeta)->hand_out(kMeta).device(), kCpu);
  EXPECT_EQ(TensorValue::copy_of(result, std::nullopt)->hand_out(kMeta).device(), kCpu);
}

TEST(TensorFormatTest, reads_back_every_dtype_and_shape) {
  for (const at::ScalarType dtype :
       {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kUInt16, at::kUInt32,
        at::kUInt64, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kComplexHalf,
        at::kComplexFloat, at::kComplexDouble, at::kBool, at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    for (const at::Tensor& floats :
         {at::ones({}), at::arange(6).view({2, 3}), at::ones({0, 4}),
          at::arange(6).view({2, 3}).t(), at::ones({2, 1}).expand({2, 5})}) {
      const at::Tensor original = floats.to(at::kFloat).to(dtype);
      const auto value = value_of(original);
      const StoredText stored{std::string(value->payload().view())};
      const auto read = TensorFormat().read(value->header(), stored);
      ASSERT_TRUE(read.is_ok()) << read.status().message();
      const auto& again = static_cast<const TensorValue&>(*read.value());
      const at::Tensor tensor = again.hand_out(kCpu);
      EXPECT_EQ(tensor.scalar_type(), dtype);
      EXPECT_EQ(tensor.sizes(), original.sizes());
      EXPECT_EQ(again.payload().view(), value->payload().view());
      EXPECT_EQ(again.header(), value->header());
    }
  }
}

TEST(TensorFormatTest, what_does_not_fit_together_is_corruption) {
  const auto read = [](TensorHeader header, std::size_t payload_size_bytes) {
    return TensorFormat()
        .read(encode_tensor_header(header), StoredText(std::string(payload_size_bytes, 'x')))
        .status()
        .code();
  };
  TensorHeader header;
  header.dtype = static_cast<std::uint8_t>(at::kFloat);
  header.sizes = {2, 3};
  EXPECT_EQ(read(header, 24), StatusCode::kOk);
  EXPECT_EQ(read(header, 23), StatusCode::kCorruption);
  EXPECT_EQ(read(header, 25), StatusCode::kCorruption);
  header.sizes = {std::int64_t{1} << 50, 4};  // believed, it would be allocated
  EXPECT_EQ(read(header, 24), StatusCode::kCorruption);
  header.sizes = {std::int64_t{1} << 62, 16};  // 2^68 bytes, which is 0 in 64 bits
  EXPECT_EQ(read(header, 0), StatusCode::kCorruption);
  header.sizes = {2, 3};
  for (const int dtype : {static_cast<int>(at::kQInt8), static_cast<int>(at::ScalarType::Undefined),
                          static_cast<int>(at::ScalarType::NumOptions), 255}) {
    header.dtype = static_cast<std::uint8_t>(dtype);
    EXPECT_EQ(read(header, 24), StatusCode::kCorruption) << dtype;
  }
}

TEST(TensorFormatTest, a_payload_that_fails_its_check_is_no_value) {
  const auto value = value_of(at::ones({2}));
  StoredText stored(std::string(8, 'x'));
  stored.status = Status::corruption("checksum");
  EXPECT_EQ(TensorFormat().read(value->header(), stored).status().code(), StatusCode::kCorruption);
  EXPECT_EQ(TensorFormat().read("", stored).status().code(), StatusCode::kCorruption);
}

TEST(WhyNotStorableTest, names_what_no_tier_can_hold) {
  EXPECT_EQ(why_not_storable(at::ones({2})), nullptr);
  EXPECT_EQ(why_not_storable(at::ones({2, 3}).t()), nullptr);
  EXPECT_STREQ(why_not_storable(at::Tensor()), "undefined");
  EXPECT_STREQ(why_not_storable(at::ones({2}).to_sparse()), "not dense (sparse or opaque)");
  EXPECT_STREQ(why_not_storable(at::empty({2}, at::kMeta)), "without data");
  EXPECT_STREQ(why_not_storable(at::quantize_per_tensor(at::ones({2}), 1.0, 0, at::kQInt8)),
               "quantized");
}

// ----- inputs

at::IValue tuple_of(std::vector<at::IValue> values) {
  return c10::ivalue::Tuple::create(std::move(values));
}
at::IValue list_of(const std::vector<std::int64_t>& values) {
  return c10::List<std::int64_t>(c10::ArrayRef<std::int64_t>(values));
}
at::IValue lists_of(const std::vector<std::vector<std::int64_t>>& lists) {
  c10::List<c10::List<std::int64_t>> out;
  for (const auto& list : lists) {
    out.push_back(c10::List<std::int64_t>(c10::ArrayRef<std::int64_t>(list)));
  }
  return out;
}
at::IValue dict_of(const std::vector<std::pair<std::string, at::Tensor>>& items) {
  c10::Dict<std::string, at::Tensor> dict;
  for (const auto& [key, tensor] : items) dict.insert(key, tensor);
  return dict;
}

TEST(InputTest, the_signature_names_structure_dtypes_and_shapes) {
  const at::Tensor x = at::ones({2, 3});
  EXPECT_EQ(summarize_input(x).signature, "float32[2,3]");
  EXPECT_EQ(summarize_input(at::ones({}, at::kLong)).signature, "int64[]");
  EXPECT_EQ(summarize_input(tuple_of({x, at::ones({4}, at::kBool)})).signature,
            "(float32[2,3],bool[4])");
}

TEST(InputTest, tensors_alone_leave_no_arguments) {
  const at::Tensor x = at::ones({2});
  EXPECT_EQ(summarize_input(x).arguments, "");
  EXPECT_EQ(summarize_input(tuple_of({x, tuple_of({x})})).arguments, "");
  EXPECT_EQ(summarize_input(c10::List<at::Tensor>({x, x})).arguments, "");
}

TEST(InputTest, no_two_different_plain_arguments_look_alike) {
  const at::Tensor x = at::ones({2});
  const std::vector<at::IValue> inputs{tuple_of({x, 1}),
                                       tuple_of({1, x}),
                                       tuple_of({x, 1, 2}),
                                       tuple_of({x, 12}),
                                       tuple_of({x, 2, 1}),
                                       tuple_of({x, 1.0}),
                                       tuple_of({x, true}),
                                       tuple_of({x, false}),
                                       tuple_of({x, "1"}),
                                       tuple_of({x, 0.0}),
                                       tuple_of({x, -0.0}),
                                       tuple_of({x, at::IValue()}),
                                       tuple_of({x, "", ""}),
                                       tuple_of({x, "a", "b"}),
                                       tuple_of({x, "ab", ""}),
                                       tuple_of({x, "a@2s1:b"}),
                                       tuple_of({x, "a@2s1:b", ""}),
                                       tuple_of({x, "1:a"}),
                                       tuple_of({x, std::string("a\0b", 3)}),
                                       tuple_of({x, "a"}),
                                       tuple_of({x, at::Device(at::kCPU)}),
                                       tuple_of({x, "cpu"}),
                                       tuple_of({x, c10::complex<double>(1, 2)}),
                                       tuple_of({x, c10::complex<double>(2, 1)}),
                                       tuple_of({x, list_of({1, 2})}),
                                       tuple_of({x, tuple_of({1, 2})}),
                                       tuple_of({x, tuple_of({1}), 2}),
                                       tuple_of({x, list_of({1}), 2}),
                                       tuple_of({x, lists_of({{1}, {2}})}),
                                       tuple_of({x, lists_of({{1, 2}})}),
                                       tuple_of({x, lists_of({{1, 2}, {}})}),
                                       tuple_of({tuple_of({x, 1}), 2})};
  for (std::size_t a = 0; a < inputs.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      EXPECT_NE(summarize_input(inputs[a]).arguments, summarize_input(inputs[b]).arguments)
          << "inputs " << a << " and " << b;
    }
  }
}

TEST(InputTest, equal_plain_arguments_look_alike_whatever_the_tensors) {
  const auto arguments = [](const at::Tensor& x) {
    return summarize_input(tuple_of({x, list_of({1, 2}), "a", at::IValue()})).arguments;
  };
  EXPECT_EQ(arguments(at::ones({2})), arguments(at::zeros({3, 3}, at::kLong)));
}

TEST(InputTest, dicts_are_told_apart_by_keys_and_order) {
  const at::Tensor x = at::ones({2});
  const at::Tensor y = at::ones({3});
  const auto all = [](const at::IValue& input) {
    const InputSummary summary = summarize_input(input);
    return summary.signature + " / " + summary.arguments;
  };
  EXPECT_EQ(all(dict_of({{"a", x}, {"b", y}})), all(dict_of({{"a", x}, {"b", y}})));
  EXPECT_NE(all(dict_of({{"a", x}, {"b", x}})), all(dict_of({{"b", x}, {"a", x}})));
  EXPECT_NE(all(dict_of({{"a", x}})), all(dict_of({{"b", x}})));
  EXPECT_NE(all(dict_of({{"a", x}})), all(tuple_of({"a", x})));
}

TEST(InputTest, tells_whether_and_which_tensors_require_grad) {
  const at::Tensor x = at::ones({2});
  const at::Tensor g = at::ones({2}).requires_grad_(true);
  EXPECT_FALSE(summarize_input(tuple_of({x, x})).any_requires_grad);
  EXPECT_TRUE(summarize_input(tuple_of({x, g})).any_requires_grad);
  EXPECT_NE(summarize_input(tuple_of({x, g})).requires_grad_pattern,
            summarize_input(tuple_of({g, x})).requires_grad_pattern);
  EXPECT_EQ(summarize_input(tuple_of({1, x})).device, kCpu);
  EXPECT_FALSE(summarize_input(tuple_of({1})).device.has_value());
}

TEST(InputTest, says_what_no_address_can_stand_for) {
  EXPECT_EQ(summarize_input(at::ones({2})).why_not_cacheable, "");
  EXPECT_NE(summarize_input(at::ones({2}).to_sparse()).why_not_cacheable, "");
  EXPECT_NE(summarize_input(tuple_of({1, at::empty({2}, at::kMeta)})).why_not_cacheable, "");
}

}  // namespace
}  // namespace modcache::tensor
