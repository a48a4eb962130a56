// SPDX-License-Identifier: Apache-2.0
#include "tensor/input.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <vector>

#include "support/value_tensors.h"

namespace modcache::tensor {
namespace {

using modcache::testing::tuple_of;

const at::Device kCpu{at::kCPU};

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
  EXPECT_EQ(summarize_input(tuple_of({x, x})).requiring_grad.pattern(), 0u);
  EXPECT_EQ(summarize_input(tuple_of({x, g})).requiring_grad.count, 1);
  EXPECT_NE(summarize_input(tuple_of({x, g})).requiring_grad.pattern(),
            summarize_input(tuple_of({g, x})).requiring_grad.pattern());
  EXPECT_EQ(summarize_input(tuple_of({1, x})).device, kCpu);
  EXPECT_FALSE(summarize_input(tuple_of({1})).device.has_value());
}

TEST(InputTest, says_what_no_address_can_stand_for) {
  EXPECT_EQ(summarize_input(at::ones({2})).why_not_cacheable, "");
  EXPECT_NE(summarize_input(at::ones({2}).to_sparse()).why_not_cacheable, "");
  EXPECT_NE(summarize_input(tuple_of({1, at::empty({2}, at::kMeta)})).why_not_cacheable, "");
}

// ----- one key per row

TEST(InputTest, per_row_the_signature_leaves_the_first_sizes_out) {
  const at::IValue input = tuple_of({at::ones({8, 3}), at::ones({8}, at::kLong), 2});
  EXPECT_EQ(summarize_input(input, Per::kRow).signature, "(float32[3],int64[],_)");
  EXPECT_EQ(summarize_input(input, Per::kRow).arguments, summarize_input(input).arguments);
}

TEST(InputTest, the_first_size_of_every_tensor_is_the_number_of_keys) {
  const at::Tensor x = at::ones({2, 3});
  EXPECT_NO_THROW(check_rows(x, 2));
  EXPECT_NO_THROW(check_rows(tuple_of({x, 7, dict_of({{"a", x}})}), 2));
  EXPECT_NO_THROW(check_rows(at::ones({0, 3}), 0));
  EXPECT_ANY_THROW(check_rows(x, 3));
  EXPECT_ANY_THROW(check_rows(at::ones({}), 1));
  EXPECT_ANY_THROW(check_rows(tuple_of({x, at::ones({3, 2})}), 2));
  EXPECT_ANY_THROW(check_rows(tuple_of({x, dict_of({{"a", at::ones({1, 2})}})}), 2));
  EXPECT_ANY_THROW(check_rows(tuple_of({1, 2}), 2));
}

TEST(InputTest, a_wrong_count_of_keys_is_told_with_both_numbers) {
  try {
    check_rows(at::ones({2, 3}), 5);
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("5 keys"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("[2, 3]"));
  }
}

TEST(InputTest, a_form_and_its_tensors_are_summarised_as_the_input_is) {
  const at::Tensor x = at::ones({2, 3});
  const at::Tensor y = at::ones({2}, at::kLong);
  const std::vector<std::pair<at::IValue, std::vector<at::Tensor>>> inputs{
      {x, {x}},
      {tuple_of({x}), {x}},
      {tuple_of({x, 3, y, std::string("%")}), {x, y}},
      {tuple_of({dict_of({{"a", x}, {"b", y}}), list_of({1, 2}), x}), {x, y, x}}};
  for (const auto& [input, tensors] : inputs) {
    for (const Per per : {Per::kCall, Per::kRow}) {
      const InputSummary whole = summarize_input(input, per);
      const InputSummary filled = summarize_form(form_of_input(input), tensors, per);
      EXPECT_EQ(filled.signature, whole.signature);
      EXPECT_EQ(filled.arguments, whole.arguments);
      EXPECT_EQ(filled.device, whole.device);
    }
  }
}

TEST(InputTest, a_form_with_another_number_of_tensors_is_refused) {
  const at::Tensor x = at::ones({2, 3});
  const InputForm form = form_of_input(tuple_of({x, x}));
  EXPECT_THROW(summarize_form(form, {x}, Per::kCall), c10::Error);
  EXPECT_THROW(summarize_form(form, {x, x, x}, Per::kCall), c10::Error);
}

TEST(ArithmeticStateTest, says_whether_it_has_few_bits) {
  EXPECT_FALSE(is_of_few_bits(""));
  EXPECT_FALSE(is_of_few_bits("default=float64;"));
  EXPECT_TRUE(is_of_few_bits("cpu=bfloat16;"));
  EXPECT_TRUE(is_of_few_bits("default=float16;"));
}

}  // namespace
}  // namespace modcache::tensor
