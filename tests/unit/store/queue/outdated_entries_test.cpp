// SPDX-License-Identifier: Apache-2.0
//
// What this process must not find any more although the directory still has it.
#include "store/queue/outdated_entries.h"

#include <gtest/gtest.h>

#include <memory>

#include "store/queue/write_queue.h"
#include "support/store_fixture.h"

namespace modcache::store {
namespace {

class OutdatedEntriesTest : public ::testing::Test {
 protected:
  OutdatedEntry entry(std::string key, Sequence sequence) const {
    return {context_, std::move(key), sequence};
  }
  bool covers(std::string_view key, Sequence sequence) const {
    return outdated_.covers(address_of(context_->digest, key), sequence);
  }

  const std::shared_ptr<const Context> context_ =
      std::make_shared<const Context>(testing::context_named("scope"));
  OutdatedEntries outdated_{2};
};

TEST_F(OutdatedEntriesTest, covers_what_is_older_than_the_value_that_was_not_kept) {
  EXPECT_TRUE(outdated_.is_empty());
  EXPECT_FALSE(covers("a", 1));
  outdated_.add({entry("a", 5)});
  EXPECT_TRUE(covers("a", 4));
  EXPECT_FALSE(covers("a", 5));
  EXPECT_FALSE(covers("b", 4));
}

TEST_F(OutdatedEntriesTest, an_entry_that_was_added_again_is_not_removed_for_an_earlier_value) {
  outdated_.add({entry("a", 5)});
  const OutdatedEntry earlier = *outdated_.any();
  outdated_.add({entry("a", 8), entry("a", 7)});
  outdated_.remove(earlier);
  EXPECT_TRUE(covers("a", 7));
  outdated_.remove(*outdated_.any());
  EXPECT_FALSE(covers("a", 7));
  EXPECT_TRUE(outdated_.is_empty());
  EXPECT_FALSE(outdated_.any().has_value());
}

TEST_F(OutdatedEntriesTest, of_more_than_it_holds_all_that_is_older_is_covered_for_good) {
  outdated_.add({entry("a", 5), entry("b", 6), entry("c", 7)});
  EXPECT_EQ(outdated_.size(), 2u);
  EXPECT_TRUE(covers("c", 6));
  EXPECT_FALSE(covers("c", 7));
  while (const auto next = outdated_.any()) outdated_.remove(*next);
  EXPECT_FALSE(outdated_.is_empty());
  EXPECT_TRUE(covers("c", 6));
}

}  // namespace
}  // namespace modcache::store
