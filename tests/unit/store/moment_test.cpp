// SPDX-License-Identifier: Apache-2.0
//
// Puts whose call began before a clear: Store::now(), was_cleared_since() and RowPut::since.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "base/clock.h"
#include "support/store_fixture.h"

namespace modcache::store {
namespace {

using testing::get;
using testing::open_store;

class MomentTest : public testing::StoreTest {
 protected:
  // Two stores of one directory are as two processes.
  std::unique_ptr<Store> open() const { return open_store(directory_ / "store"); }
  void put_since(Store& store, const Moment& moment, std::string_view key = "key") {
    RowPut row{key, "header", share_bytes("text")};
    row.since = &moment;
    std::vector<Sequence> sequences;
    const OneOrMany<Digest128> addresses =
        addresses_of(context_.digest, std::span<const std::string_view>(&key, 1));
    ASSERT_TRUE(store.put_all(context_, addresses, {row}, sequences).is_ok());
  }
  bool was_cleared(Store& store, const Moment& moment, std::string_view key = "key") {
    return store.was_cleared_since(moment, {context_, key});
  }
};

TEST_F(MomentTest, a_clear_that_covers_the_entry_came_since) {
  const auto here = open();
  const auto there = open();
  const Moment before = here->now();
  EXPECT_FALSE(was_cleared(*here, before));
  ASSERT_TRUE(there->clear({"another scope", ""}).is_ok());
  ASSERT_TRUE(there->clear({"", "other"}).is_ok());
  EXPECT_FALSE(was_cleared(*here, before));
  EXPECT_TRUE(was_cleared(*here, before, "other key"));
  ClearFilter old;
  old.older_than_us = now_us();
  ASSERT_TRUE(there->clear(old).is_ok());
  EXPECT_FALSE(was_cleared(*here, before));
  ASSERT_TRUE(there->clear({"scope", ""}).is_ok());
  EXPECT_TRUE(was_cleared(*here, before));
  EXPECT_FALSE(was_cleared(*here, here->now()));
}

TEST_F(MomentTest, a_dropped_entry_may_be_stored_again) {
  const auto here = open();
  ASSERT_TRUE(testing::put(*here, context_, "key", "wrong").is_ok());
  ASSERT_TRUE(here->flush().is_ok());
  const Moment before = here->now();
  ASSERT_TRUE(
      here->drop({context_, "key"}, here->sequences(batch_of({context_, "key"}))[0]).is_ok());
  EXPECT_FALSE(was_cleared(*here, before));
  put_since(*here, before);
  ASSERT_TRUE(here->flush().is_ok());
  EXPECT_EQ(get(*open(), context_, "key"), "text");
}

TEST_F(MomentTest, a_moment_of_another_directory_counts_as_cleared) {
  const auto here = open();
  const auto other = open_store(directory_ / "other");
  EXPECT_TRUE(was_cleared(*other, here->now()));
}

class MomentPutTest : public MomentTest, public ::testing::WithParamInterface<bool> {
 protected:
  // Whether something was stored before, so that a sequence is taken.
  void prepare() {
    if (!GetParam()) return;
    const auto store = open();
    ASSERT_TRUE(testing::put(*store, context_, "earlier", "text").is_ok());
    ASSERT_TRUE(store->flush().is_ok());
  }
};

TEST_P(MomentPutTest, is_not_found_where_the_clear_came_before_the_put) {
  prepare();
  const auto here = open();
  const Moment begun = here->now();
  ASSERT_TRUE(open()->clear({}).is_ok());
  put_since(*here, begun);
  EXPECT_EQ(get(*here, context_, "key"), "<missing>");
  ASSERT_TRUE(here->flush().is_ok());
  EXPECT_EQ(get(*here, context_, "key"), "<missing>");
  EXPECT_EQ(get(*open(), context_, "key"), "<missing>");
}

TEST_P(MomentPutTest, is_not_found_where_the_clear_came_while_it_was_queued) {
  prepare();
  const auto here = open();
  const auto there = open();
  put_since(*here, here->now());
  EXPECT_EQ(get(*here, context_, "key"), "text");
  ASSERT_TRUE(there->clear({}).is_ok());
  EXPECT_EQ(get(*here, context_, "key"), "<missing>");
  ASSERT_TRUE(here->flush().is_ok());
  EXPECT_EQ(get(*open(), context_, "key"), "<missing>");
}

TEST_P(MomentPutTest, is_not_brought_back_when_the_index_is_rebuilt) {
  prepare();
  {
    const auto here = open();
    const Moment begun = here->now();
    ASSERT_TRUE(open()->clear({}).is_ok());
    put_since(*here, begun);
    ASSERT_TRUE(here->flush().is_ok());
  }
  for (const char* const file : {"index.sqlite", "index.sqlite-wal", "index.sqlite-shm"}) {
    std::filesystem::remove(directory_ / "store/" + file);
  }
  EXPECT_EQ(get(*open(), context_, "key"), "<missing>");
}

TEST_P(MomentPutTest, is_found_where_it_began_after_the_clear) {
  prepare();
  const auto here = open();
  ASSERT_TRUE(open()->clear({}).is_ok());
  put_since(*here, here->now());
  ASSERT_TRUE(here->flush().is_ok());
  EXPECT_EQ(get(*open(), context_, "key"), "text");
}

INSTANTIATE_TEST_SUITE_P(Directory, MomentPutTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "used" : "fresh"; });

}  // namespace
}  // namespace modcache::store
