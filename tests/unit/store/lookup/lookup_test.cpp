// SPDX-License-Identifier: Apache-2.0
#include "store/lookup/lookup.h"

#include <gmock/gmock.h>

#include <memory>

#include "support/store_parts.h"

namespace modcache::store {
namespace {

using ::testing::ElementsAre;
using testing::open_store;
using testing::StoreParts;

using LookupTest = testing::StorePartsTest;

TEST_F(LookupTest, finds_what_waits_in_the_queue) {
  StoreParts parts(options_);
  const auto put = parts.queued(context_, "key", "value");
  parts.push(put);
  auto found = parts.find({context_, "key"});
  ASSERT_TRUE(found.is_ok());
  EXPECT_EQ(found.value()->sequence(), put->sequence);
  EXPECT_TRUE(parts.is_current({context_, "key"}, put->sequence));
  EXPECT_FALSE(parts.is_current({context_, "key"}, put->sequence + 1));
}

TEST_F(LookupTest, does_not_find_what_waits_once_another_process_cleared_it) {
  StoreParts parts(options_);
  parts.push(parts.queued(context_, "key", "value"));
  ASSERT_TRUE(open_store(options_)->clear({}).is_ok());
  EXPECT_TRUE(parts.find({context_, "key"}).is_not_found());
  FoundEntries found = parts.find_all(context_, {"key"});
  EXPECT_FALSE(found.has(0));
}

TEST_F(LookupTest, finds_what_another_process_stored_one_by_one_and_together) {
  fill(2);
  StoreParts parts(options_);
  for (int i = 0; i < 2; ++i) {  // the second time, it remembers where they are
    EXPECT_TRUE(parts.find({context_, "0"}).is_ok());
    EXPECT_TRUE(parts.find({context_, "2"}).is_not_found());
    FoundEntries found = parts.find_all(context_, {"0", "1", "2"});
    EXPECT_TRUE(found.has(0));
    EXPECT_TRUE(found.has(1));
    EXPECT_FALSE(found.has(2));
    EXPECT_THAT(
        parts.are_current(context_, {"0", "1", "2"}, {found.sequence(0), found.sequence(1) + 1, 0}),
        ElementsAre(true, false, false));
  }
}

TEST_F(LookupTest, does_not_find_what_was_replaced_by_a_value_that_was_not_kept) {
  fill(1);
  StoreParts parts(options_);
  const Sequence sequence = parts.find({context_, "0"}).value()->sequence();
  parts.outdated.add({{std::make_shared<const Context>(context_), "0", sequence + 1}});
  EXPECT_TRUE(parts.find({context_, "0"}).is_not_found());
  EXPECT_FALSE(parts.find_all(context_, {"0"}).has(0));
  EXPECT_FALSE(parts.is_current({context_, "0"}, sequence));
}

TEST_F(LookupTest, does_not_find_what_is_too_old) {
  fill(1);
  options_.max_age_us = 1;
  StoreParts parts(options_);
  EXPECT_TRUE(parts.find({context_, "0"}).is_not_found());
  EXPECT_FALSE(parts.find_all(context_, {"0"}).has(0));
}

TEST_F(LookupTest, reads_where_nothing_can_be_written) {
  fill(1);
  options_.writable = false;
  StoreParts parts(options_);
  EXPECT_TRUE(parts.find({context_, "0"}).is_ok());
  EXPECT_TRUE(parts.find_all(context_, {"0"}).has(0));
}

}  // namespace
}  // namespace modcache::store
