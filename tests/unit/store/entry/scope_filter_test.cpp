// SPDX-License-Identifier: Apache-2.0
#include "store/entry/scope_filter.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "store/index/index.h"
#include "support/store_fixture.h"

namespace modcache::store {
namespace {

using testing::context_named;
using testing::get;
using testing::open_store;
using testing::put;

Context context_of(const std::string& name_space, const std::string& scope) {
  return {blake2b_128(name_space + '|' + scope), scope, name_space + "," + scope};
}

TEST(ScopeFilterTest, a_scope_covers_contexts_of_that_scope) {
  EXPECT_TRUE(ScopeFilter("s").covers(context_of("a", "s")));
  EXPECT_FALSE(ScopeFilter("s").covers(context_of("a", "t")));
  EXPECT_TRUE(ScopeFilter("").covers(context_of("a", "s")));
}

TEST(ScopeFilterTest, a_range_covers_contexts_whose_description_begins_so) {
  for (const char* scope : {"", "s"}) {
    const std::string range = scope_range("a,", scope);
    EXPECT_TRUE(ScopeFilter(range).covers(context_of("a", "s")));
    EXPECT_FALSE(ScopeFilter(range).covers(context_of("b", "s")));
  }
  EXPECT_FALSE(ScopeFilter(scope_range("a,", "s")).covers(context_of("a", "t")));
  EXPECT_TRUE(ScopeFilter(scope_range("", "s")).covers(context_of("b", "s")));
  EXPECT_FALSE((ClearFilter{scope_range("", ""), "", 0}.covers_everything()));
}

TEST(ScopeFilterTest, a_damaged_range_covers_nothing) {
  const std::string range = scope_range("a,", "");
  for (std::size_t size = 1; size < range.size(); ++size) {
    const std::string torn = range.substr(0, size);
    EXPECT_FALSE(ScopeFilter(torn).covers(context_of("a", "s"))) << size;
  }
  EXPECT_FALSE(ScopeFilter("\xff"
                           "range 99999999999999999999:a,")
                   .covers(context_of("a", "s")));
}

class ScopeRangeTest : public testing::StoreTest {
 protected:
  const Context one_ = context_of("one", "scope");
  const Context two_ = context_of("two", "scope");
  const ClearFilter of_one_{scope_range("one,", "scope"), "", 0};

  void expect_two_alone(Store& store) {
    EXPECT_EQ(get(store, one_, "key"), "<missing>");
    EXPECT_EQ(get(store, two_, "key"), "2");
  }
};

TEST_F(ScopeRangeTest, a_clear_of_a_range_leaves_the_rest) {
  auto store = open_store(directory_.path());
  ASSERT_TRUE(put(*store, one_, "key", "1").is_ok() && put(*store, two_, "key", "2").is_ok());
  ASSERT_TRUE(store->flush().is_ok());
  ASSERT_TRUE(put(*store, one_, "queued", "1").is_ok());
  ASSERT_TRUE(put(*store, two_, "queued", "2").is_ok());
  EXPECT_EQ(store->clear(of_one_).value(), 2);
  expect_two_alone(*store);
  EXPECT_EQ(get(*store, two_, "queued"), "2");
  expect_two_alone(*open_store(directory_.path()));
}

TEST_F(ScopeRangeTest, a_rebuild_brings_back_nothing_of_it_and_loses_nothing_else) {
  {
    auto store = open_store(directory_.path());
    ASSERT_TRUE(put(*store, one_, "key", "1").is_ok() && put(*store, two_, "key", "2").is_ok());
    ASSERT_TRUE(store->flush().is_ok());
    ASSERT_EQ(store->clear(of_one_).value(), 1);
    ASSERT_TRUE(put(*store, one_, "later", "3").is_ok() && store->flush().is_ok());
  }
  std::filesystem::remove(directory_ / "index.sqlite");
  auto store = open_store(directory_.path());
  expect_two_alone(*store);
  EXPECT_EQ(get(*store, one_, "later"), "3");
}

// Another process put it before the clear, and commits it after the clear.
TEST_F(ScopeRangeTest, what_is_committed_after_it_is_judged_by_it) {
  auto clearing = open_store(directory_.path());
  auto late = open_store(directory_.path());
  ASSERT_TRUE(put(*late, one_, "key", "1").is_ok() && put(*late, two_, "key", "2").is_ok());
  ASSERT_TRUE(clearing->clear(of_one_).is_ok());
  ASSERT_TRUE(late->flush().is_ok());
  expect_two_alone(*late);
  expect_two_alone(*open_store(directory_.path()));
}

}  // namespace
}  // namespace modcache::store
