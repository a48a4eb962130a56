// SPDX-License-Identifier: Apache-2.0
//
// What becomes of the result of a RowsCall's run.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "module/call/rows_call.h"
#include "support/rows_call_fixture.h"

namespace modcache::module {
namespace {

using cache::Mode;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Optional;

using RowsCallRunTest = testing::RowsCallTest;

TEST_F(RowsCallRunTest, is_kept_row_by_row_and_counted_by_rows) {
  const auto call = call_of({1, 2}, {"a", "b"});
  ASSERT_TRUE(call->next_rows().has_value());
  run(*call, at::tensor({10.0F, 20.0F}));
  EXPECT_TRUE(call->outcome().has_stored);
  EXPECT_EQ(stat("stored"), 2);
  EXPECT_EQ(stat("misses"), 2);
  EXPECT_THAT(numbers({2}, {"b"}), ElementsAre(20));
}

TEST_F(RowsCallRunTest, without_the_rows_is_given_back_and_not_stored) {
  const auto call = call_of({1, 2}, {"a", "b"});
  ASSERT_TRUE(call->next_rows().has_value());
  run(*call, at::ones({3}));
  EXPECT_EQ(call->next_rows(), std::nullopt);
  EXPECT_EQ(call->together()->tensors[0].size(0), 3);
  EXPECT_THAT(call->outcome().refusal, HasSubstr("it was run on 2 rows, one key each"));
  EXPECT_EQ(stat("stored"), 0);
  EXPECT_EQ(stat("bypassed_rows"), 2);
  EXPECT_THAT(numbers({1}, {"a"}), ElementsAre(10)) << "others go on";
}

TEST_F(RowsCallRunTest, of_some_rows_that_cannot_be_put_together_is_followed_by_one_of_all) {
  (void)numbers({1}, {"a"});
  const auto call = call_of({1, 2}, {"a", "b"});
  ASSERT_THAT(call->next_rows(), Optional(ElementsAre(1)));
  run(*call, at::ones({1}).to_sparse());
  ASSERT_THAT(call->next_rows(), Optional(ElementsAre(0, 1)));
  run(*call, at::tensor({10.0F, 20.0F}));
  EXPECT_EQ(call->next_rows(), std::nullopt);
  EXPECT_THAT(numbers({2}, {"b"}), ElementsAre(20));
}

TEST_F(RowsCallRunTest, that_a_rule_refuses_is_given_back_and_not_kept) {
  const auto call = call_of({1, 2, 1}, {"a", "b", "a"});
  ASSERT_TRUE(call->next_rows().has_value());
  run(*call, at::tensor({10.0F, 20.0F}).requires_grad_());
  EXPECT_EQ(call->next_rows(), std::nullopt);
  EXPECT_EQ(call->outcome().refused_for, "grad");
  EXPECT_FALSE(call->outcome().has_stored);
  EXPECT_TRUE(call->together()->tensors[0].requires_grad());
  EXPECT_EQ(stat("bypassed_grad"), 2);
  EXPECT_EQ(stat("hits_memory"), 0);
}

TEST_F(RowsCallRunTest, is_not_kept_where_the_mode_may_not_write_or_no_scope_is_known) {
  set_mode(Mode::kRead);
  EXPECT_THAT(numbers({1}, {"a"}), ElementsAre(10));
  set_mode(Mode::kOn);
  CallParts parts = parts_of(at::ones({1}), tensor::Per::kRow);
  parts.scope.clear();
  RowsCall call(parts, BatchKeys({"a"}));
  ASSERT_TRUE(call.next_rows().has_value());
  run(call, at::ones({1}));
  EXPECT_EQ(stat("stored"), 0);
}

TEST_F(RowsCallRunTest, replaces_what_is_stored_under_refresh) {
  (void)numbers({1}, {"a"});
  set_mode(Mode::kRefresh);
  const auto call = call_of({1}, {"a"});
  ASSERT_TRUE(call->next_rows().has_value());
  run(*call, at::tensor({11.0F}));
  set_mode(Mode::kOn);
  EXPECT_THAT(numbers({1}, {"a"}), ElementsAre(11));
}

TEST_F(RowsCallRunTest, is_compared_row_by_row_under_verify) {
  (void)numbers({1, 2}, {"a", "b"});
  set_mode(Mode::kVerify);
  const auto call = call_of({1, 2, 3}, {"a", "b", "c"});
  ASSERT_TRUE(call->next_rows().has_value());
  run(*call, at::tensor({10.0F, 21.0F, 30.0F}));
  EXPECT_EQ(stat("verify_differences"), 1);
  EXPECT_EQ(log_.about("for key 'b'").size(), 1u);
  EXPECT_EQ(stat("misses"), 3) << "two of the first batch, and key c";
  set_mode(Mode::kOn);
  EXPECT_THAT(numbers({2}, {"b"}), ElementsAre(20)) << "the stored one stays";
}

}  // namespace
}  // namespace modcache::module
