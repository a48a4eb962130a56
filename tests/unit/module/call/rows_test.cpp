// SPDX-License-Identifier: Apache-2.0
//
// Calls with a key for each row: which rows are run, what is compared of their input, and what
// becomes of the results.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <memory>
#include <thread>
#include <variant>
#include <vector>

#include "module/call/run.h"
#include "support/call_fixture.h"

namespace modcache::module {
namespace {

using cache::Mode;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RowsTest : public testing::CallFixture {
 protected:
  static std::unique_ptr<module::Run> run_of(const Numbers& input, const Names& keys) {
    return CallFixture::run_of(keys, at::tensor(input));
  }
  static std::vector<std::int64_t> rows_of(module::Run& run) {
    const Step* const step = run.step();
    return step == nullptr ? std::vector<std::int64_t>{} : step->rows;
  }
};

// ----- which rows are run

TEST_F(RowsTest, runs_each_missing_key_once_and_gives_all_rows_in_order) {
  EXPECT_THAT(numbers({1, 2, 1, 3}, {"a", "b", "a", "c"}), ElementsAre(10, 20, 10, 30));
  EXPECT_THAT(asked_, ElementsAre(ElementsAre(0, 1, 3)));
  EXPECT_THAT(numbers({3, 4, 1}, {"c", "d", "a"}), ElementsAre(30, 40, 10));
  EXPECT_THAT(asked_, ElementsAre(ElementsAre(1)));
  EXPECT_EQ(stat("misses"), 4);
  EXPECT_EQ(stat("hits_memory"), 3) << "row 2 of the first batch came from the same call";
}

TEST_F(RowsTest, runs_nothing_where_all_rows_are_stored) {
  (void)numbers({1, 2}, {"a", "b"});
  for (int tier = 0; tier < 2; ++tier) {
    EXPECT_THAT(numbers({2, 1, 2}, {"b", "a", "b"}), ElementsAre(20, 10, 20));
    EXPECT_THAT(asked_, ElementsAre());
    forget_memory();
  }
  EXPECT_EQ(stat("hits_disk"), 2);
}

TEST_F(RowsTest, runs_the_missing_rows_of_a_batch_that_is_partly_on_disk) {
  (void)numbers({1, 2, 3}, {"a", "b", "c"});
  forget_memory();
  EXPECT_THAT(numbers({4, 2, 5, 1}, {"d", "b", "e", "a"}), ElementsAre(40, 20, 50, 10));
  EXPECT_THAT(asked_, ElementsAre(ElementsAre(0, 2)));
  EXPECT_EQ(stat("hits_disk"), 2);
  EXPECT_EQ(stat("misses"), 5);
}

TEST_F(RowsTest, waits_for_rows_that_another_thread_runs) {
  const auto leading = run_of({1}, {"a"});
  Numbers waited_for;
  std::thread waiting([&] { waited_for = numbers({1, 2}, {"a", "b"}); });
  finish(*leading, at::full({1}, 10.0F));
  EXPECT_EQ(leading->step(), nullptr);
  waiting.join();
  EXPECT_THAT(waited_for, ElementsAre(10, 20));
  EXPECT_EQ(stat("misses"), 2);
}

TEST_F(RowsTest, that_are_abandoned_are_run_by_others) {
  const auto raised = run_of({1}, {"a"});
  raised->start();
  raised->abandon();
  EXPECT_THAT(numbers({1}, {"a"}), ElementsAre(10));
  EXPECT_EQ(stat("stored"), 1);
}

TEST_F(RowsTest, of_rejected_hits_are_all_run_and_replaced) {
  (void)numbers({1, 2}, {"a", "b"});
  testing::OwnCall call = call_of(Names{"b", "a", "b"}, at::tensor({2.0F, 1.0F, 2.0F}));
  ASSERT_TRUE(call.begin().value.has_value());
  const auto run = call.reject();
  ASSERT_THAT(rows_of(*run), ElementsAre(0, 1, 2));
  finish(*run, at::tensor({7.0F, 8.0F, 7.0F}));
  EXPECT_EQ(run->step(), nullptr);
  EXPECT_EQ(stat("key_conflicts"), 3);
  EXPECT_THAT(numbers({1, 2}, {"a", "b"}), ElementsAre(8, 7));
}

TEST_F(RowsTest, stored_with_another_dtype_are_not_mixed_with_those_of_a_run) {
  finish(*run_of({1}, {"a"}), at::ones({1}, at::kLong));
  EXPECT_THAT(numbers({1, 2}, {"a", "b"}), ElementsAre(10, 20));
  EXPECT_THAT(asked_, ElementsAre(ElementsAre(1), ElementsAre(0, 1)));
  EXPECT_EQ(stat("corrupt"), 1);
  EXPECT_THAT(numbers({1}, {"a"}), ElementsAre(10)) << "it was replaced";
}

TEST_F(RowsTest, that_do_not_fit_together_come_as_a_list) {
  configure({{"match", "none"}});
  finish(*run_of({1}, {"a"}), at::ones({1, 2}));
  finish(*run_of({1}, {"b"}), at::ones({1, 3}));
  testing::OwnCall call = call_of(Names{"a", "b"}, at::ones({2}));
  const Begun begun = call.begin();
  ASSERT_TRUE(begun.value.has_value());
  const auto& rows = std::get<std::vector<tensor::Flat>>(*begun.value);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].tensors[0].sizes(), at::IntArrayRef({2}));
  EXPECT_EQ(rows[1].tensors[0].sizes(), at::IntArrayRef({3}));
}

TEST_F(RowsTest, that_do_not_fit_together_are_no_conflict_of_keys) {
  configure({{"match", "none"}});
  finish(*run_of({1}, {"a"}), at::ones({1, 2}));
  finish(*run_of({1}, {"b"}), at::ones({1, 3}));
  testing::OwnCall call = call_of(Names{"a", "b"}, at::ones({2}));
  ASSERT_TRUE(call.begin().value.has_value());
  const auto run = call.reject("they have two shapes");
  EXPECT_THAT(rows_of(*run), ElementsAre(0, 1));
  EXPECT_EQ(stat("key_conflicts"), 0);
}

// ----- inputs

TEST_F(RowsTest, with_one_key_and_one_input_are_run_once) {
  EXPECT_THAT(numbers({5, 5}, {"a", "a"}), ElementsAre(50, 50));
  EXPECT_THAT(asked_, ElementsAre(ElementsAre(0)));
  EXPECT_EQ(stat("key_conflicts"), 0);
}

TEST_F(RowsTest, with_one_key_and_different_inputs_get_each_their_own_result) {
  EXPECT_THAT(numbers({5, 6, 5}, {"a", "a", "a"}), ElementsAre(50, 60, 50));
  EXPECT_THAT(asked_, ElementsAre(ElementsAre(0, 1, 2))) << "the whole input";
  EXPECT_EQ(stat("key_conflicts"), 1);
}

TEST_F(RowsTest, with_one_key_are_one_where_values_are_not_compared) {
  configure({{"match", "none"}});
  EXPECT_THAT(numbers({5, 6}, {"a", "a"}), ElementsAre(50, 50));
  EXPECT_EQ(stat("key_conflicts"), 0);
}

TEST_F(RowsTest, stored_for_another_input_are_run_and_replaced) {
  (void)numbers({1, 2}, {"a", "b"});
  EXPECT_THAT(numbers({7, 2}, {"a", "b"}), ElementsAre(70, 20));
  EXPECT_THAT(asked_, ElementsAre(ElementsAre(0)));
  EXPECT_EQ(stat("key_conflicts"), 1);
  forget_memory();
  EXPECT_THAT(numbers({7}, {"a"}), ElementsAre(70));
  EXPECT_THAT(asked_, ElementsAre());
}

TEST_F(RowsTest, are_stored_with_the_samples_of_the_input_before_the_run) {
  const at::Tensor input = at::tensor({1.0F, 2.0F});
  const auto run = CallFixture::run_of(Names{"a", "b"}, input);
  run->start();
  const at::Tensor result = input * 10;
  input.add_(5);
  run->finish(tensor::flatten(result));
  EXPECT_THAT(numbers({1, 2}, {"a", "b"}), ElementsAre(10, 20));
  EXPECT_THAT(asked_, ElementsAre());
}

// ----- results

TEST_F(RowsTest, are_stored_and_counted_one_by_one) {
  const auto run = run_of({1, 2}, {"a", "b"});
  finish(*run, at::tensor({10.0F, 20.0F}));
  EXPECT_TRUE(run->outcome().has_stored);
  EXPECT_EQ(stat("stored"), 2);
  EXPECT_EQ(stat("misses"), 2);
  EXPECT_THAT(numbers({2}, {"b"}), ElementsAre(20));
}

TEST_F(RowsTest, a_result_without_them_is_given_back_and_not_stored) {
  const auto run = run_of({1, 2}, {"a", "b"});
  finish(*run, at::ones({3}));
  EXPECT_EQ(run->step(), nullptr);
  EXPECT_EQ(tensor_of(run->value(/*has_own_result=*/false).value()).size(0), 3);
  EXPECT_THAT(run->outcome().refusal, HasSubstr("it was run on 2 rows, one key each"));
  EXPECT_EQ(stat("stored"), 0);
  EXPECT_EQ(stat("bypassed_rows"), 2);
  EXPECT_THAT(numbers({1}, {"a"}), ElementsAre(10)) << "others continue";
}

TEST_F(RowsTest, a_result_of_some_that_cannot_be_put_together_is_followed_by_one_of_all) {
  (void)numbers({1}, {"a"});
  const auto run = run_of({1, 2}, {"a", "b"});
  ASSERT_THAT(rows_of(*run), ElementsAre(1));
  finish(*run, at::ones({1}).to_sparse());
  ASSERT_THAT(rows_of(*run), ElementsAre(0, 1));
  finish(*run, at::tensor({10.0F, 20.0F}));
  EXPECT_EQ(run->step(), nullptr);
  EXPECT_THAT(numbers({2}, {"b"}), ElementsAre(20));
}

TEST_F(RowsTest, that_a_rule_refuses_are_given_back_and_not_stored) {
  const auto run = run_of({1, 2, 1}, {"a", "b", "a"});
  finish(*run, at::tensor({10.0F, 20.0F}).requires_grad_());
  EXPECT_EQ(run->step(), nullptr);
  EXPECT_EQ(run->outcome().refused_for, "grad");
  EXPECT_FALSE(run->outcome().has_stored);
  EXPECT_TRUE(tensor_of(run->value().value()).requires_grad());
  EXPECT_EQ(stat("bypassed_grad"), 2);
  EXPECT_EQ(stat("hits_memory"), 0);
}

TEST_F(RowsTest, are_not_stored_where_the_mode_may_not_write_or_no_scope_is_known) {
  set_mode(Mode::kRead);
  EXPECT_THAT(numbers({1}, {"a"}), ElementsAre(10));
  set_mode(Mode::kOn);
  CallParts parts = parts_of(at::ones({1}), tensor::Per::kRow);
  parts.scope.clear();
  testing::OwnCall call(parts, CallKeys(Names{"a"}));
  const Begun begun = call.begin();
  ASSERT_NE(begun.run, nullptr);
  finish(*begun.run, at::ones({1}));
  EXPECT_EQ(stat("stored"), 0);
}

TEST_F(RowsTest, are_not_stored_after_a_clear_that_came_since_the_run_began) {
  const auto run = run_of({1, 2}, {"a", "b"});
  run->start();
  test_cache().clear({}, cache::Cache::Tier::kAll);
  run->finish(tensor::flatten(at::tensor({10.0F, 20.0F})));
  EXPECT_EQ(run->step(), nullptr);
  EXPECT_EQ(stat("stored"), 0);
  EXPECT_THAT(numbers({1, 2}, {"a", "b"}), ElementsAre(10, 20));
  EXPECT_THAT(asked_, ElementsAre(ElementsAre(0, 1)));
}

TEST_F(RowsTest, replace_what_is_stored_under_refresh) {
  (void)numbers({1}, {"a"});
  set_mode(Mode::kRefresh);
  finish(*run_of({1}, {"a"}), at::tensor({11.0F}));
  set_mode(Mode::kOn);
  EXPECT_THAT(numbers({1}, {"a"}), ElementsAre(11));
}

TEST_F(RowsTest, are_compared_one_by_one_under_verify) {
  (void)numbers({1, 2}, {"a", "b"});
  set_mode(Mode::kVerify);
  finish(*run_of({1, 2, 3}, {"a", "b", "c"}), at::tensor({10.0F, 21.0F, 30.0F}));
  EXPECT_EQ(stat("verify_differences"), 1);
  EXPECT_EQ(log_.about("for key 'b'").size(), 1u);
  EXPECT_EQ(stat("misses"), 3) << "two of the first batch, and key c";
  set_mode(Mode::kOn);
  EXPECT_THAT(numbers({2}, {"b"}), ElementsAre(20)) << "the stored one stays";
}

}  // namespace
}  // namespace modcache::module
