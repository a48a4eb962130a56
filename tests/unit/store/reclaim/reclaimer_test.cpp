// SPDX-License-Identifier: Apache-2.0
#include "store/reclaim/reclaimer.h"

#include <gtest/gtest.h>

#include <chrono>

#include "support/store_parts.h"

namespace modcache::store {
namespace {

using testing::StoreParts;

using ReclaimerTest = testing::StorePartsTest;

TEST_F(ReclaimerTest, evicts_in_the_thread_of_its_caller) {
  fill(5);
  StoreParts parts(options_);
  auto evicted = parts.reclaimer.evict(0);
  ASSERT_TRUE(evicted.is_ok());
  EXPECT_EQ(evicted.value().entries, 5);
  EXPECT_FALSE(parts.has_row(context_, "0"));
}

TEST_F(ReclaimerTest, makes_room_in_its_own_thread_for_who_asks) {
  fill(5);
  options_.disk_budget_bytes = 16 << 10;  // the database alone is larger
  StoreParts parts(options_);
  parts.reclaimer.start();
  parts.reclaimer.room().wait(1000, true, RoomRequests::Clock::now() + std::chrono::seconds(60));
  EXPECT_TRUE(parts.reclaimer.room().is_exhausted());
  EXPECT_FALSE(parts.has_row(context_, "0"));
}

}  // namespace
}  // namespace modcache::store
