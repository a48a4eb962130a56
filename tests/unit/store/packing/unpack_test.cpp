// SPDX-License-Identifier: Apache-2.0
//
// Unpacking into directories that have entries of their own.
#include <gtest/gtest.h>

#include <string>

#include "store/packing/packing.h"
#include "support/pack_fixture.h"

namespace modcache::store {
namespace {

using testing::context_named;
using testing::get;
using testing::open_store;
using testing::put;

class UnpackTest : public testing::PackTest {};

TEST_F(UnpackTest, puts_into_what_it_was_made_from) {
  fill(300);
  {
    const Directory directory(files_, dir_);
    ASSERT_TRUE(keep_note(directory, "manifest of scope", "text").is_ok());
  }
  const auto stored_at = open_store(dir_)->find({context_, "key 7"}).value()->stored_at_us();
  pack();
  const auto summary = unpack_into(files_, file_, options_of(other_));
  ASSERT_TRUE(summary.is_ok()) << summary.status().message();
  EXPECT_EQ(summary.value().entries, 300);
  EXPECT_EQ(summary.value().notes, 1);
  auto store = open_store(other_);
  for (int i = 0; i < 300; ++i) EXPECT_EQ(get(*store, context_, key_of(i)), value_of(i));
  EXPECT_EQ(store->find({context_, "key 7"}).value()->stored_at_us(), stored_at);
  EXPECT_EQ(store->find_note("manifest of scope").value(), "text");
  EXPECT_EQ(store->clear({"scope", "key 1"}).value(), 111) << "scopes came with their contexts";
}

TEST_F(UnpackTest, keeps_what_is_there_and_may_be_done_again) {
  fill(10);
  pack();
  {
    auto store = open_store(other_);
    ASSERT_TRUE(put(*store, context_, key_of(3), "the directory's own").is_ok());
  }
  auto summary = unpack_into(files_, file_, options_of(other_));
  EXPECT_EQ(summary.value().entries, 9);
  EXPECT_EQ(summary.value().there, 1);
  EXPECT_EQ(get(*open_store(other_), context_, key_of(3)), "the directory's own");
  summary = unpack_into(files_, file_, options_of(other_));
  EXPECT_EQ(summary.value().entries, 0);
  EXPECT_EQ(summary.value().there, 10);
}

TEST_F(UnpackTest, what_is_larger_than_the_budget_keeps_some_and_says_how_many) {
  fill(2000);
  pack();
  StoreOptions into = options_of(other_);
  into.disk_budget_bytes = 400 << 10;
  const auto summary = unpack_into(files_, file_, into);
  ASSERT_TRUE(summary.is_ok()) << summary.status().message();
  EXPECT_EQ(summary.value().entries + summary.value().not_kept, 2000);
  EXPECT_LT(open_store(other_)->totals().value().entries, 2000);
}

TEST_F(UnpackTest, makes_nothing_leave) {
  fill(1000);
  pack();
  const Context own = context_named("own");
  {
    auto store = open_store(other_);
    for (int i = 0; i < 1000; ++i) {
      ASSERT_TRUE(put(*store, own, key_of(i), value_of(i)).is_ok());
    }
    ASSERT_TRUE(store->flush().is_ok());
  }
  // One budget below the directory's size, and one a little above it.
  for (const std::uint64_t budget_bytes : {200 << 10, 700 << 10}) {
    StoreOptions into = options_of(other_);
    into.disk_budget_bytes = budget_bytes;
    const auto summary = unpack_into(files_, file_, into);
    ASSERT_TRUE(summary.is_ok()) << summary.status().message();
    EXPECT_GT(summary.value().not_kept, 0) << budget_bytes;
    auto store = open_store(other_);
    for (int i = 0; i < 1000; ++i) ASSERT_EQ(get(*store, own, key_of(i)), value_of(i)) << i;
  }
}

}  // namespace
}  // namespace modcache::store
