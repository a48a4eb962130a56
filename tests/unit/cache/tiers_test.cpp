// SPDX-License-Identifier: Apache-2.0
#include "cache/tiers.h"

#include <gtest/gtest.h>

#include "fs/posix_file_system.h"
#include "support/text_value.h"

namespace modcache::cache {
namespace {

class TiersTest : public ::testing::Test {
 protected:
  const testing::TextFormat format_;
  Stats stats_;
  Places places_;
  const TierParts parts_{
      format_, stats_,
      places_, std::make_shared<StoreHandle>(Settings(), fs::posix_file_system()),
      nullptr, fs::posix_file_system()};
};

TEST_F(TiersTest, memory_is_nearer_than_the_directory) {
  const Tiers tiers = make_tiers(Settings(), parts_);
  ASSERT_EQ(tiers.nearest_first.size(), 2u);
  EXPECT_EQ(tiers.nearest_first[0]->hits(), Counter::kHitsMemory);
  EXPECT_EQ(tiers.nearest_first[1]->hits(), Counter::kHitsDisk);
}

TEST_F(TiersTest, a_change_that_does_not_concern_a_tier_leaves_it) {
  const Settings before;
  const Tiers tiers = make_tiers(before, parts_);
  Settings settings;
  settings.memory_bytes = 1000;
  const Tiers smaller = make_tiers(settings, parts_, before, tiers);
  EXPECT_EQ(smaller.memory, tiers.memory);
  EXPECT_EQ(smaller.disk, tiers.disk);
  EXPECT_EQ(smaller.memory->budget_bytes(), 1000u);
}

TEST_F(TiersTest, another_directory_begins_with_an_empty_memory) {
  const Settings before;
  const Tiers tiers = make_tiers(before, parts_);
  Settings settings;
  settings.dir = "another";
  const Tiers elsewhere = make_tiers(settings, parts_, before, tiers);
  EXPECT_NE(elsewhere.memory, tiers.memory);
  EXPECT_NE(elsewhere.disk, tiers.disk);
}

TEST_F(TiersTest, another_budget_of_the_directory_keeps_memory) {
  const Settings before;
  const Tiers tiers = make_tiers(before, parts_);
  Settings settings;
  settings.disk_bytes = before.disk_bytes / 2;
  const Tiers other = make_tiers(settings, parts_, before, tiers);
  EXPECT_EQ(other.memory, tiers.memory);
  EXPECT_NE(other.disk, tiers.disk);
}

}  // namespace
}  // namespace modcache::cache
