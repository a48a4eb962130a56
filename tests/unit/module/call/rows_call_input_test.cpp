// SPDX-License-Identifier: Apache-2.0
//
// What a RowsCall compares of the rows of its input.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "module/call/rows_call.h"
#include "support/rows_call_fixture.h"

namespace modcache::module {
namespace {

using ::testing::ElementsAre;
using ::testing::Optional;

using RowsCallInputTest = testing::RowsCallTest;

TEST_F(RowsCallInputTest, rows_with_one_key_and_one_input_are_run_once) {
  EXPECT_THAT(numbers({5, 5}, {"a", "a"}), ElementsAre(50, 50));
  EXPECT_THAT(asked_, ElementsAre(ElementsAre(0)));
  EXPECT_EQ(stat("key_conflicts"), 0);
}

TEST_F(RowsCallInputTest, rows_with_one_key_and_different_inputs_get_each_their_own_result) {
  EXPECT_THAT(numbers({5, 6, 5}, {"a", "a", "a"}), ElementsAre(50, 60, 50));
  EXPECT_THAT(asked_, ElementsAre(ElementsAre(0, 1, 2))) << "the whole input";
  EXPECT_EQ(stat("key_conflicts"), 1);
}

TEST_F(RowsCallInputTest, rows_with_one_key_are_one_where_values_are_not_compared) {
  configure({{"match", "none"}});
  EXPECT_THAT(numbers({5, 6}, {"a", "a"}), ElementsAre(50, 50));
  EXPECT_EQ(stat("key_conflicts"), 0);
}

TEST_F(RowsCallInputTest, a_row_that_was_stored_for_another_input_is_run_and_replaced) {
  (void)numbers({1, 2}, {"a", "b"});
  EXPECT_THAT(numbers({7, 2}, {"a", "b"}), ElementsAre(70, 20));
  EXPECT_THAT(asked_, ElementsAre(ElementsAre(0)));
  EXPECT_EQ(stat("key_conflicts"), 1);
  forget_memory();
  EXPECT_THAT(numbers({7}, {"a"}), ElementsAre(70));
  EXPECT_THAT(asked_, ElementsAre());
}

TEST_F(RowsCallInputTest, entries_keep_the_rows_as_they_were_before_the_run) {
  const at::Tensor input = at::tensor({1.0F, 2.0F});
  const auto call = call_of(input, {"a", "b"});
  ASSERT_THAT(call->next_rows(), Optional(ElementsAre(0, 1)));
  call->begin_run();
  const at::Tensor result = input * 10;
  input.add_(5);
  call->finish_run(tensor::flatten(result), RunFacts{});
  EXPECT_THAT(numbers({1, 2}, {"a", "b"}), ElementsAre(10, 20));
  EXPECT_THAT(asked_, ElementsAre());
}

}  // namespace
}  // namespace modcache::module
