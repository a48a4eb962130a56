// SPDX-License-Identifier: Apache-2.0
//
// What a RowsCall asks for and puts together; rows_call_run_test.cpp shows what becomes of a run's
// result, rows_call_input_test.cpp what of the input is compared.
#include "module/call/rows_call.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <thread>
#include <vector>

#include "support/rows_call_fixture.h"

namespace modcache::module {
namespace {

using ::testing::ElementsAre;
using ::testing::Optional;

using RowsCallTest = testing::RowsCallTest;

TEST_F(RowsCallTest, asks_for_each_missing_key_once_and_gives_all_rows_in_order) {
  EXPECT_THAT(numbers({1, 2, 1, 3}, {"a", "b", "a", "c"}), ElementsAre(10, 20, 10, 30));
  EXPECT_THAT(asked_, ElementsAre(ElementsAre(0, 1, 3)));
  EXPECT_THAT(numbers({3, 4, 1}, {"c", "d", "a"}), ElementsAre(30, 40, 10));
  EXPECT_THAT(asked_, ElementsAre(ElementsAre(1)));
  EXPECT_EQ(stat("misses"), 4);
  EXPECT_EQ(stat("hits_memory"), 3) << "row 2 of the first batch came from the same call";
}

TEST_F(RowsCallTest, asks_for_nothing_where_all_rows_are_stored) {
  (void)numbers({1, 2}, {"a", "b"});
  for (int tier = 0; tier < 2; ++tier) {
    EXPECT_THAT(numbers({2, 1, 2}, {"b", "a", "b"}), ElementsAre(20, 10, 20));
    EXPECT_THAT(asked_, ElementsAre());
    forget_memory();
  }
  EXPECT_EQ(stat("hits_disk"), 2);
}

TEST_F(RowsCallTest, a_whole_input_is_all_rows_each_once) {
  const auto call = call_of({1, 2}, {"a", "b"});
  EXPECT_TRUE(call->is_whole_input({0, 1}));
  EXPECT_FALSE(call->is_whole_input({1}));
}

TEST_F(RowsCallTest, waits_for_rows_that_another_thread_runs) {
  const auto leading = call_of({1}, {"a"});
  ASSERT_THAT(leading->next_rows(), Optional(ElementsAre(0)));
  std::vector<float> waited_for;
  std::thread waiting([&] { waited_for = numbers({1, 2}, {"a", "b"}); });
  run(*leading, at::full({1}, 10.0F));
  EXPECT_EQ(leading->next_rows(), std::nullopt);
  waiting.join();
  EXPECT_THAT(waited_for, ElementsAre(10, 20));
  EXPECT_EQ(stat("misses"), 2);
}

TEST_F(RowsCallTest, that_is_abandoned_leaves_its_rows_to_others) {
  const auto raised = call_of({1}, {"a"});
  ASSERT_TRUE(raised->next_rows().has_value());
  raised->begin_run();
  raised->abandon();
  EXPECT_THAT(numbers({1}, {"a"}), ElementsAre(10));
  EXPECT_EQ(stat("stored"), 1);
}

TEST_F(RowsCallTest, that_rejects_its_hits_runs_the_whole_input_and_replaces_them) {
  (void)numbers({1, 2}, {"a", "b"});
  const auto call = call_of({2, 1, 2}, {"b", "a", "b"});
  ASSERT_EQ(call->next_rows(), std::nullopt);
  ASSERT_TRUE(call->together().has_value());
  call->reject_hits();
  ASSERT_THAT(call->next_rows(), Optional(ElementsAre(0, 1, 2)));
  run(*call, at::tensor({7.0F, 8.0F, 7.0F}));
  EXPECT_EQ(call->next_rows(), std::nullopt);
  EXPECT_EQ(stat("key_conflicts"), 3);
  EXPECT_THAT(numbers({1, 2}, {"a", "b"}), ElementsAre(8, 7));
}

TEST_F(RowsCallTest, does_not_mix_stored_rows_of_another_dtype_with_those_of_a_run) {
  const auto other = call_of({1}, {"a"});
  ASSERT_TRUE(other->next_rows().has_value());
  run(*other, at::ones({1}, at::kLong));
  EXPECT_THAT(numbers({1, 2}, {"a", "b"}), ElementsAre(10, 20));
  EXPECT_THAT(asked_, ElementsAre(ElementsAre(1), ElementsAre(0, 1)));
  EXPECT_EQ(stat("corrupt"), 1);
  EXPECT_THAT(numbers({1}, {"a"}), ElementsAre(10)) << "it was replaced";
}

TEST_F(RowsCallTest, rows_that_do_not_fit_together_come_apart) {
  configure({{"match", "none"}});
  const auto short_row = call_of({1}, {"a"});
  ASSERT_TRUE(short_row->next_rows().has_value());
  run(*short_row, at::ones({1, 2}));
  const auto long_row = call_of({1}, {"b"});
  ASSERT_TRUE(long_row->next_rows().has_value());
  run(*long_row, at::ones({1, 3}));
  const auto both = call_of({1, 1}, {"a", "b"});
  ASSERT_EQ(both->next_rows(), std::nullopt);
  EXPECT_FALSE(both->together().has_value());
  const std::vector<tensor::Flat> rows = both->apart();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].tensors[0].sizes(), at::IntArrayRef({2}));
  EXPECT_EQ(rows[1].tensors[0].sizes(), at::IntArrayRef({3}));
}

}  // namespace
}  // namespace modcache::module
