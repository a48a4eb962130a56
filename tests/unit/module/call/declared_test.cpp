// SPDX-License-Identifier: Apache-2.0
#include "module/call/declared.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/jit/api/module.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/value_tensors.h"

namespace modcache::module {
namespace {

using ::testing::AllOf;
using testing::flat_of;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using testing::with_number;

c10::TypePtr type_of(const std::string& body) {
  torch::jit::Module module("__torch__.Encoder");
  module.define("def forward(self, x):\n  " + body + "\n");
  return declared_type(*module.type(), "forward");
}

std::optional<at::IValue> value_of(const Declared& declared, CallValue value) {
  std::string why_apart;
  auto of_type = declared.value_of(std::move(value), why_apart);
  EXPECT_EQ(why_apart, "");
  return of_type;
}

const Declared kTensorOfEncoder{"Encoder.forward", c10::TensorType::get()};

TEST(DeclaredTypeTest, is_what_the_method_returns) {
  EXPECT_EQ(type_of("return (x, 1)")->annotation_str(), "Tuple[Tensor, int]");
  EXPECT_EQ(type_of("return x")->kind(), c10::TypeKind::TensorType);
}

TEST(DeclaredTypeTest, is_not_there_for_a_method_that_only_raises) {
  EXPECT_EQ(type_of("assert False, 'no'"), nullptr);
}

TEST(DeclaredTest, an_operator_for_tensors_names_the_one_for_other_results) {
  EXPECT_NO_THROW(kTensorOfEncoder.check_wanted(/*is_tensor=*/true, "Tensor"));
  EXPECT_THAT([] { kTensorOfEncoder.check_wanted(/*is_tensor=*/false, "Tuple"); },
              ThrowsMessage<c10::Error>(AllOf(HasSubstr("Encoder.forward returned Tuple"),
                                              HasSubstr("cache::lookup_or_run_any"))));
  Declared any = kTensorOfEncoder;
  any.want = Want::kAny;
  EXPECT_NO_THROW(any.check_wanted(/*is_tensor=*/false, "Tuple"));
}

TEST(DeclaredTest, a_stored_value_is_given_in_the_declared_type_and_in_no_other) {
  const tensor::Flat pair = with_number(at::ones({2}), 7);
  const Declared as_pair{"Encoder.forward", type_of("return (x, 1)"), Want::kAny};
  const auto value = value_of(as_pair, pair);
  ASSERT_TRUE(value.has_value());
  EXPECT_EQ(value->toTupleRef().elements()[1].toInt(), 7);
  const Declared as_text{"Encoder.forward", type_of("return (x, 'text')"), Want::kAny};
  EXPECT_FALSE(value_of(as_text, pair).has_value());
}

TEST(DeclaredTest, a_structured_value_is_nothing_to_an_operator_for_tensors) {
  const tensor::Flat pair = with_number(at::ones({2}), 7);
  const Declared undeclared{"Encoder.forward", nullptr, Want::kTensor};
  EXPECT_FALSE(value_of(undeclared, pair).has_value());
}

TEST(DeclaredTest, rows_that_do_not_fit_together_are_a_list_or_a_reason_to_reject_them) {
  const std::vector<tensor::Flat> rows{flat_of({at::ones({2})}), flat_of({at::ones({3})})};
  Declared any = kTensorOfEncoder;
  any.want = Want::kAny;
  const auto list = value_of(any, rows);
  EXPECT_EQ(list->toListRef()[1].toTensor().size(0), 3);
  std::string why_apart;
  EXPECT_FALSE(kTensorOfEncoder.value_of(rows, why_apart).has_value());
  EXPECT_THAT(why_apart, HasSubstr("its rows do not fit into one tensor"));
  const Declared as_pair{"Encoder.forward", type_of("return (x, 1)"), Want::kAny};
  EXPECT_FALSE(value_of(as_pair, rows).has_value());
}

}  // namespace
}  // namespace modcache::module
