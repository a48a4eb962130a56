// SPDX-License-Identifier: Apache-2.0
#include "store/index/clearing.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/index_fixture.h"

namespace modcache::store {
namespace {

using ClearingTest = testing::IndexTest;

TEST_F(ClearingTest, clears_by_scope_and_by_prefix) {
  const std::string last_prefix = "\xff\xff";
  ASSERT_TRUE(index_
                  ->commit({row(context_, "aa", 1), row(context_, "ab", 2), row(context_, "b", 3),
                            row(context_, last_prefix + "x", 4), row(other_, "aa", 5)})
                  .is_ok());
  EXPECT_EQ(clear_rows(*index_, {{"scope", "a"}, 10}, keep_all).value(), 2);
  EXPECT_EQ(sequence_of(other_, "aa"), 5u);
  EXPECT_EQ(clear_rows(*index_, {{"", last_prefix}, 11}, keep_all).value(), 1);
  EXPECT_EQ(sequence_of(context_, "b"), 3u);
  EXPECT_EQ(clear_rows(*index_, {{}, 12}, keep_all).value(), 2);
  EXPECT_EQ(index_->count_entries().value(), 0);
}

TEST_F(ClearingTest, refuses_rows_that_were_put_before_a_clear) {
  ASSERT_TRUE(clear_rows(*index_, {{"scope", "a"}, 10}, keep_all).is_ok());
  ASSERT_TRUE(index_
                  ->commit({row(context_, "a1", 9), row(context_, "a2", 11), row(context_, "b", 9),
                            row(other_, "a1", 9)})
                  .is_ok());
  EXPECT_EQ(sequence_of(context_, "a1"), 0u);
  EXPECT_EQ(sequence_of(context_, "a2"), 11u);
  EXPECT_EQ(sequence_of(context_, "b"), 9u);
  EXPECT_EQ(sequence_of(other_, "a1"), 9u);
  EXPECT_TRUE(index_->is_cleared(context_, "a1", 9).value());
  EXPECT_FALSE(index_->is_cleared(context_, "a1", 10).value());
}

TEST_F(ClearingTest, undoes_a_clear_whose_plan_fails) {
  ASSERT_TRUE(index_->commit({row(context_, "key", 5)}).is_ok());
  auto outcome = clear_rows(*index_, {{}, 10}, [](const std::vector<SegmentFacts>&) {
    return Result<SegmentPlan>(Status::no_space("no room for a tombstone"));
  });
  EXPECT_EQ(outcome.status().code(), StatusCode::kNoSpace);
  EXPECT_EQ(sequence_of(context_, "key"), 5u);
  EXPECT_EQ(index_->count_entries().value(), 1);
  EXPECT_FALSE(index_->is_cleared(context_, "key", 5).value());
}

TEST_F(ClearingTest, names_the_rows_that_it_removed) {
  ASSERT_TRUE(index_->commit({row(context_, "a", 1), row(other_, "a", 2)}).is_ok());
  RemovedRows removed;
  EXPECT_EQ(clear_rows(*index_, {{"scope", ""}, 10}, keep_all, &removed).value(), 1);
  EXPECT_TRUE(removed.is_complete);
  ASSERT_EQ(removed.rows.size(), 1u);
  EXPECT_EQ(removed.rows[0].context, context_.digest);
  EXPECT_EQ(removed.rows[0].key, "a");
  EXPECT_EQ(removed.rows[0].sequence, 1u);
}

}  // namespace
}  // namespace modcache::store
