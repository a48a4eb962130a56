// SPDX-License-Identifier: Apache-2.0
#include "store/write/clearer.h"

#include <gmock/gmock.h>

#include "support/store_parts.h"

namespace modcache::store {
namespace {

using ::testing::HasSubstr;
using testing::StoreParts;

using ClearerTest = testing::StorePartsTest;

TEST_F(ClearerTest, counts_what_was_committed_and_what_waits_but_no_entry_twice) {
  fill(2);
  StoreParts parts(options_);
  parts.push(parts.queued(context_, "0", "another value"));
  parts.push(parts.queued(context_, "new", "value"));
  const std::uint64_t clears = parts.attached.control().clears();
  const std::uint64_t removals = parts.attached.removals();
  auto cleared = parts.clearer.clear({});
  ASSERT_TRUE(cleared.is_ok());
  EXPECT_EQ(cleared.value(), 3);
  EXPECT_EQ(parts.queue.size_bytes(), 0);
  EXPECT_FALSE(parts.has_row(context_, "1"));
  EXPECT_GT(parts.attached.control().clears(), clears);
  EXPECT_GT(parts.attached.removals(), removals);
  EXPECT_FALSE(parts.attached.control().is_removal_pending());
}

TEST_F(ClearerTest, leaves_what_the_filter_does_not_cover) {
  fill(2);
  StoreParts parts(options_);
  auto cleared = parts.clearer.clear({context_.scope, "1"});
  ASSERT_TRUE(cleared.is_ok());
  EXPECT_EQ(cleared.value(), 1);
  EXPECT_TRUE(parts.has_row(context_, "0"));
  EXPECT_FALSE(parts.has_row(context_, "1"));
}

TEST_F(ClearerTest, refuses_where_the_directory_can_only_be_read) {
  fill(1);
  options_.writable = false;
  StoreParts parts(options_);
  EXPECT_THAT(parts.clearer.clear({}).status().message(), HasSubstr("can only be read"));
}

}  // namespace
}  // namespace modcache::store
