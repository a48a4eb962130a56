// SPDX-License-Identifier: Apache-2.0
//
// Scopes of the library's own (kOwnScopeMark): found and removed like others, and not counted.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "store/store.h"
#include "support/store_fixture.h"

namespace modcache::store {
namespace {

using testing::context_named;
using testing::get;
using testing::open_store;
using testing::put;

class OwnScopeTest : public testing::StoreTest {
 protected:
  OwnScopeTest() {
    store_ = open_store(directory_.path());
    EXPECT_TRUE(put(*store_, context_, "key", "entry").is_ok());
    EXPECT_TRUE(put(*store_, own_, mark_ + "note", "aside").is_ok());
  }
  std::int64_t clear(const std::string& scope, const std::string& prefix) {
    auto removed = store_->clear({scope, prefix});
    EXPECT_TRUE(removed.is_ok()) << removed.status().message();
    return removed.is_ok() ? removed.value() : -1;
  }

  const std::string mark_ = std::string(1, kOwnScopeMark);
  const Context own_ = context_named(mark_ + "notes");
  std::unique_ptr<Store> store_;
};

TEST_F(OwnScopeTest, is_found_and_not_counted) {
  ASSERT_TRUE(store_->flush().is_ok());
  EXPECT_EQ(store_->totals().value().entries, 1);
  store_ = nullptr;
  store_ = open_store(directory_.path());
  EXPECT_EQ(get(*store_, own_, mark_ + "note"), "aside");
  EXPECT_EQ(store_->totals().value().entries, 1);
}

TEST_F(OwnScopeTest, outlives_a_clear_of_another_scope_or_of_a_prefix) {
  ASSERT_TRUE(store_->flush().is_ok());
  EXPECT_EQ(clear("", "k"), 1);
  EXPECT_EQ(clear("scope", ""), 0);
  EXPECT_EQ(get(*store_, own_, mark_ + "note"), "aside");
}

TEST_F(OwnScopeTest, goes_with_everything_uncounted_while_queued_and_when_committed) {
  EXPECT_EQ(clear("", ""), 1);
  EXPECT_EQ(get(*store_, own_, mark_ + "note"), "<missing>");
  EXPECT_TRUE(put(*store_, context_, "key", "entry").is_ok());
  EXPECT_TRUE(put(*store_, own_, mark_ + "note", "aside").is_ok());
  ASSERT_TRUE(store_->flush().is_ok());
  EXPECT_EQ(clear("", ""), 1);
  EXPECT_EQ(get(*store_, own_, mark_ + "note"), "<missing>");
  EXPECT_EQ(store_->totals().value().entries, 0);
}

TEST_F(OwnScopeTest, tells_when_an_entry_was_stored) {
  auto queued = store_->find({context_, "key"});
  ASSERT_TRUE(queued.is_ok());
  const std::int64_t stored_at_us = queued.value()->stored_at_us();
  EXPECT_GT(stored_at_us, 1'600'000'000'000'000);
  ASSERT_TRUE(store_->flush().is_ok());
  EXPECT_EQ(store_->find({context_, "key"}).value()->stored_at_us(), stored_at_us);
}

}  // namespace
}  // namespace modcache::store
