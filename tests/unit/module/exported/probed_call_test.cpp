// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "module/exported/exported.h"
#include "support/module_fixture.h"

namespace modcache::module {
namespace {

class ProbedCallTest : public testing::ModuleTest {
 protected:
  static std::unique_ptr<ProbedCall> held(const at::Tensor& input,
                                          std::optional<std::vector<std::int64_t>> ids = {},
                                          const std::string& key = "a",
                                          std::vector<std::int64_t> sizes = {2}) {
    const auto per = ids.has_value() ? tensor::Per::kRow : tensor::Per::kCall;
    std::optional<at::Tensor> ids_tensor;
    if (ids.has_value()) ids_tensor = at::tensor(*ids, at::kLong);
    return std::make_unique<ProbedCall>(parts_of(input, per), std::vector<at::Tensor>(), key,
                                        std::move(ids_tensor),
                                        Expected{"float32:1,", std::move(sizes), {}},
                                        /*are_rows_proven=*/true);
  }
  std::unique_ptr<ProbedCall> held() const { return held(input_); }
  static at::Tensor number(float value) { return at::full({2}, value); }

  const at::Tensor input_ = at::ones({2});
};

TEST(ExportedCopiesTest, are_ordinary_tensors_with_memory_of_their_own) {
  const c10::InferenceMode inference;
  const at::Tensor tensor = at::ones({2, 3}).t();
  const std::vector<at::Tensor> copies = copies_of({tensor});
  EXPECT_TRUE(at::equal(copies[0], tensor));
  EXPECT_TRUE(copies[0].is_contiguous());
  EXPECT_FALSE(copies[0].is_alias_of(tensor));
  EXPECT_FALSE(copies[0].is_inference());
}

TEST(ExpectedTest, fits_values_of_its_dtypes_sizes_and_form_alone) {
  const Expected expected{"float32:1,", {2}, {}};
  EXPECT_TRUE(expected.fits({}, {at::ones({2})}));
  EXPECT_FALSE(expected.fits({}, {at::ones({3})}));
  EXPECT_FALSE(expected.fits({}, {at::ones({2}, at::kDouble)}));
  EXPECT_FALSE(expected.fits({}, {at::ones({2}), at::ones({2})}));
  tensor::Node none;
  none.kind = tensor::Node::Kind::kNone;
  EXPECT_FALSE(expected.fits(none, {at::ones({2})}));
}

TEST_F(ProbedCallTest, is_completed_by_a_run_and_found_by_the_next) {
  const auto first = held();
  EXPECT_FALSE(first->look_up());
  EXPECT_TRUE(at::equal(first->complete({number(5)})[0], number(5)));
  const auto second = held();
  EXPECT_TRUE(second->look_up());
  EXPECT_TRUE(at::equal(second->take()->at(0), number(5)));
  EXPECT_EQ(stat("stored"), 1);
}

TEST_F(ProbedCallTest, looks_up_again_what_was_taken) {
  const auto first = held();
  EXPECT_FALSE(first->look_up());
  (void)first->complete({number(5)});
  EXPECT_TRUE(at::equal(first->take()->at(0), number(5)));
  EXPECT_TRUE(at::equal(first->take()->at(0), number(5)));
  EXPECT_TRUE(at::equal(first->complete({number(6)})[0], number(5))) << "what is stored stays";
}

TEST_F(ProbedCallTest, that_has_nothing_to_run_takes_no_result) {
  EXPECT_TRUE(at::equal(held()->complete({number(6)})[0], number(6))) << "it was bypassed";
  const auto first = held();
  EXPECT_FALSE(first->look_up());
  (void)first->complete({number(5)});
  const auto found = held();
  EXPECT_TRUE(found->look_up());
  EXPECT_TRUE(at::equal(found->complete({number(6)})[0], number(5)));
}

TEST_F(ProbedCallTest, gives_a_result_of_another_form_back_and_does_not_keep_it) {
  const auto call = held();
  EXPECT_FALSE(call->look_up());
  EXPECT_TRUE(at::equal(call->complete({at::ones({7})})[0], at::ones({7})));
  EXPECT_EQ(stat("bypassed_type"), 1);
  EXPECT_EQ(stat("stored"), 0);
}

TEST_F(ProbedCallTest, replaces_a_stored_value_of_another_form) {
  const auto other = held(input_, {}, "a", {7});
  EXPECT_FALSE(other->look_up());
  (void)other->complete({at::ones({7})});
  const auto call = held();
  EXPECT_FALSE(call->look_up());
  (void)call->complete({number(5)});
  EXPECT_TRUE(held()->look_up());
}

TEST_F(ProbedCallTest, completes_the_rows_that_are_missing_with_those_that_are_stored) {
  const at::Tensor input = at::tensor({1.0F, 2.0F});
  const auto first = held(input, {{7, 8}});
  EXPECT_FALSE(first->look_up());
  (void)first->complete({at::tensor({10.0F, 20.0F})});
  const auto second = held(at::tensor({2.0F, 3.0F}), {{8, 9}});
  EXPECT_FALSE(second->look_up());
  const at::Tensor fresh = at::tensor({21.0F, 30.0F});
  EXPECT_TRUE(at::equal(second->complete({fresh})[0], at::tensor({20.0F, 30.0F})));
  EXPECT_EQ(stat("stored"), 3);
  const auto third = held(at::tensor({3.0F, 1.0F}), {{9, 7}});
  EXPECT_TRUE(third->look_up());
  EXPECT_TRUE(at::equal(third->take()->at(0), at::tensor({30.0F, 10.0F})));
}

TEST_F(ProbedCallTest, is_another_question_with_another_key_input_ids_or_form) {
  EXPECT_EQ(held()->question(), held()->question());
  const std::set<std::uint64_t> questions{held()->question(),
                                          held(input_, {}, "b")->question(),
                                          held(at::zeros({2}))->question(),
                                          held(input_, {}, "a", {3})->question(),
                                          held(input_, {{1, 2}})->question(),
                                          held(input_, {{2, 1}})->question()};
  EXPECT_EQ(questions.size(), 6u);
}

}  // namespace
}  // namespace modcache::module
