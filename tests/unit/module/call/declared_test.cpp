// SPDX-License-Identifier: Apache-2.0
#include "module/call/declared.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/jit/api/module.h>

#include <optional>
#include <string>

#include "support/rows_call_fixture.h"
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
  const auto value = as_pair.value_of(pair.root, pair.tensors);
  ASSERT_TRUE(value.has_value());
  EXPECT_EQ(value->toTupleRef().elements()[1].toInt(), 7);
  const Declared as_text{"Encoder.forward", type_of("return (x, 'text')"), Want::kAny};
  EXPECT_FALSE(as_text.value_of(pair.root, pair.tensors).has_value());
}

TEST(DeclaredTest, a_structured_value_is_nothing_to_an_operator_for_tensors) {
  const tensor::Flat pair = with_number(at::ones({2}), 7);
  const Declared undeclared{"Encoder.forward", nullptr, Want::kTensor};
  EXPECT_FALSE(undeclared.value_of(pair.root, pair.tensors).has_value());
}

TEST(DeclaredTest, a_hit_is_the_callers_own_to_write_into) {
  const auto hit = tensor::WholeValue::copy_of(flat_of({at::ones({2})}), std::nullopt,
                                               cache::StoredDtype::kKeep);
  kTensorOfEncoder.value_of(*hit, std::nullopt)->toTensor().zero_();
  EXPECT_TRUE(at::equal(kTensorOfEncoder.value_of(*hit, std::nullopt)->toTensor(), at::ones({2})));
}

class DeclaredRowsTest : public testing::RowsCallTest {
 protected:
  // All rows of it are stored under their keys.
  void store(const at::Tensor& result, const Keys& keys) const {
    const auto call = call_of(at::ones({result.size(0)}), keys);
    ASSERT_TRUE(call->next_rows().has_value());
    run(*call, result);
  }
  static Rows rows_of(const Declared& declared, const Keys& keys) {
    const auto call = call_of(at::ones({static_cast<std::int64_t>(keys.size())}), keys);
    EXPECT_EQ(call->next_rows(), std::nullopt);
    return declared.rows_of(*call).value();
  }
};

TEST_F(DeclaredRowsTest, come_together_where_they_fit) {
  store(at::tensor({1.0F, 2.0F}), {"a", "b"});
  const Rows rows = rows_of(kTensorOfEncoder, {"b", "a"});
  EXPECT_FALSE(rows.apart.has_value());
  EXPECT_TRUE(at::equal(rows.together.toTensor(), at::tensor({2.0F, 1.0F})));
}

TEST_F(DeclaredRowsTest, that_do_not_fit_come_apart_or_have_the_batch_run_whole) {
  store(at::ones({1, 2}), {"short"});
  store(at::ones({1, 3}), {"long"});
  Declared any = kTensorOfEncoder;
  any.want = Want::kAny;
  const Rows rows = rows_of(any, {"short", "long"});
  ASSERT_TRUE(rows.apart.has_value());
  EXPECT_EQ(rows.apart->at(1).toTensor().size(0), 3);
  const auto call = call_of(at::ones({2}), {"short", "long"});
  EXPECT_EQ(call->next_rows(), std::nullopt);
  EXPECT_FALSE(kTensorOfEncoder.rows_of(*call).has_value());
  call->reject_hits();
  EXPECT_EQ(call->next_rows(), (std::vector<std::int64_t>{0, 1}));
}

TEST_F(DeclaredRowsTest, of_another_type_are_nothing) {
  store(at::tensor({1.0F}), {"a"});
  const Declared as_pair{"Encoder.forward", type_of("return (x, 1)"), Want::kAny};
  const auto call = call_of({1}, {"a"});
  EXPECT_EQ(call->next_rows(), std::nullopt);
  EXPECT_FALSE(as_pair.rows_of(*call).has_value());
}

}  // namespace
}  // namespace modcache::module
