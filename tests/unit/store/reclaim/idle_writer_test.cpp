// SPDX-License-Identifier: Apache-2.0
//
// Making room where processes have segments that they may still write to.
#include <gtest/gtest.h>

#include "support/reclaim_fixture.h"

namespace modcache::store {
namespace {

using testing::get;
using testing::open_store;
using testing::ReclaimTest;

class IdleWriterTest : public ReclaimTest {};

// It holds the lock of the only segment, and nobody may empty what is written to.
TEST_F(IdleWriterTest, leaves_its_segment_to_who_evicts) {
  auto idle = open_store(options_);
  fill(*idle, 0, 5);
  auto store = open_store(options_);
  auto evicted = store->evict(0);
  ASSERT_TRUE(evicted.is_ok());
  EXPECT_EQ(evicted.value().entries, 5);
  EXPECT_FALSE(evicted.value().is_hindered);
  EXPECT_EQ(get(*idle, context_, "0"), "<missing>");
  fill(*idle, 7, 8);
  EXPECT_EQ(get(*store, context_, "7"), value_of(7));
}

}  // namespace
}  // namespace modcache::store
