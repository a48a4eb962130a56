// SPDX-License-Identifier: Apache-2.0
#include "store/segment/tombstone.h"

#include <gtest/gtest.h>

#include <string>

#include "support/store_fixture.h"

namespace modcache::store {
namespace {

TEST(TombstoneTest, says_all_of_its_clear) {
  const Clear clear{{"scope", "train/", 1234}, 77, testing::context_named("scope").digest};
  const NewRecord record = tombstone_of(clear);
  EXPECT_EQ(record.head.kind, RecordKind::kClear);
  EXPECT_EQ(record.context, nullptr) << "no context is declared for it";
  const Clear again = clear_of(record.head, record.header, record.key);
  EXPECT_EQ(again.filter.scope, "scope");
  EXPECT_EQ(again.filter.key_prefix, "train/");
  EXPECT_EQ(again.filter.older_than_us, 1234);
  EXPECT_EQ(again.sequence, 77u);
  EXPECT_EQ(again.context, clear.context);
}

TEST(TombstoneTest, of_what_was_replaced_covers_that_entry_and_no_later_one) {
  const Context context = testing::context_named("scope");
  const Clear clear = clear_of_replaced(context, "key", 5);
  EXPECT_TRUE(is_cleared_by(clear, context, "key", 5));
  EXPECT_FALSE(is_cleared_by(clear, context, "key", 6));
  EXPECT_FALSE(is_cleared_by(clear, context, "key2", 5));
  EXPECT_FALSE(is_cleared_by(clear, testing::context_named("scope", "other"), "key", 5));
}

}  // namespace
}  // namespace modcache::store
