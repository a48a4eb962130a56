// SPDX-License-Identifier: Apache-2.0
#include "store/write/outdated_remover.h"

#include <gtest/gtest.h>

#include <memory>

#include "support/store_parts.h"

namespace modcache::store {
namespace {

using testing::StoreParts;

class OutdatedRemoverTest : public testing::StorePartsTest {
 protected:
  OutdatedRemoverTest() {
    fill(2);
    parts_.emplace(options_);
  }
  QueuedPutPtr not_kept(bool replaces) {
    auto put = parts_->queued(context_, "0", "new value");
    put->replaces = replaces;
    return put;
  }

  std::optional<StoreParts> parts_;
};

TEST_F(OutdatedRemoverTest, removes_what_the_value_would_have_replaced) {
  const std::uint64_t removals = parts_->attached.removals();
  parts_->remover.remove({not_kept(true)});
  EXPECT_FALSE(parts_->has_row(context_, "0"));
  EXPECT_TRUE(parts_->has_row(context_, "1"));
  EXPECT_TRUE(parts_->outdated.is_empty());
  EXPECT_GT(parts_->attached.removals(), removals);
}

TEST_F(OutdatedRemoverTest, leaves_what_no_value_would_have_replaced) {
  parts_->remover.remove({not_kept(false)});
  EXPECT_TRUE(parts_->has_row(context_, "0"));
}

TEST_F(OutdatedRemoverTest, what_is_noted_is_not_found_until_it_is_removed) {
  parts_->remover.note({not_kept(true)});
  EXPECT_TRUE(parts_->has_row(context_, "0"));
  EXPECT_TRUE(parts_->find({context_, "0"}).is_not_found());
  parts_->remover.remove_noted();
  EXPECT_FALSE(parts_->has_row(context_, "0"));
  EXPECT_TRUE(parts_->outdated.is_empty());
}

TEST_F(OutdatedRemoverTest, a_later_value_of_the_same_entry_stays) {
  const QueuedPutPtr earlier = not_kept(true);
  {
    auto store = testing::open_store(options_);
    ASSERT_TRUE(testing::put(*store, context_, "0", "later").is_ok());
  }
  parts_->remover.remove({earlier});
  EXPECT_TRUE(parts_->has_row(context_, "0"));
}

TEST_F(OutdatedRemoverTest, numbers_what_was_refused_before_it_had_a_sequence) {
  parts_->remover.remove_refused({{std::make_shared<const Context>(context_), "0", 0}});
  EXPECT_FALSE(parts_->has_row(context_, "0"));
}

}  // namespace
}  // namespace modcache::store
