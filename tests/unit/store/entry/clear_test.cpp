// SPDX-License-Identifier: Apache-2.0
#include "store/entry/clear.h"

#include <gtest/gtest.h>

#include "support/store_fixture.h"

namespace modcache::store {
namespace {

const Context kOfA = testing::context_named("a");
const Context kOtherOfA = testing::context_named("a", "other method");
const Context kOfB = testing::context_named("b");

TEST(ClearTest, covers_what_its_filter_names_and_was_stored_before_it) {
  const Clear clear{{"a", "train/"}, 10};
  EXPECT_TRUE(is_cleared_by(clear, kOfA, "train/1", 9));
  EXPECT_TRUE(is_cleared_by(clear, kOtherOfA, "train/1", 9));
  EXPECT_FALSE(is_cleared_by(clear, kOfA, "train/1", 10)) << "stored after it";
  EXPECT_FALSE(is_cleared_by(clear, kOfA, "test/1", 9));
  EXPECT_FALSE(is_cleared_by(clear, kOfB, "train/1", 9));
  EXPECT_FALSE(clear.is_narrow());
}

TEST(ClearTest, by_age_covers_what_is_older) {
  const Clear clear{{"", "", 1000}, 10};
  EXPECT_TRUE(is_cleared_by(clear, kOfA, "key", 9, 999));
  EXPECT_FALSE(is_cleared_by(clear, kOfA, "key", 9, 1000));
  EXPECT_TRUE(clear.is_narrow()) << "no later entry can be meant";
}

TEST(ClearTest, of_one_entry_covers_its_whole_key_in_its_context_alone) {
  const Clear clear{{"a", "key"}, 10, kOfA.digest};
  EXPECT_TRUE(is_cleared_by(clear, kOfA, "key", 9));
  EXPECT_FALSE(is_cleared_by(clear, kOfA, "key and more", 9));
  EXPECT_FALSE(is_cleared_by(clear, kOtherOfA, "key", 9));
  EXPECT_FALSE(is_cleared_by(clear, kOfA, "key", 10));
  EXPECT_TRUE(clear.is_narrow());
  const Clear of_older{{"a", "key", 1000}, 10, kOfA.digest};
  EXPECT_TRUE(is_cleared_by(of_older, kOfA, "key", 9, 999));
  EXPECT_FALSE(is_cleared_by(of_older, kOfA, "key", 9, 1000));
}

}  // namespace
}  // namespace modcache::store
