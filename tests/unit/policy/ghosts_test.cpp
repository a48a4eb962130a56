// SPDX-License-Identifier: Apache-2.0
#include "policy/ghosts.h"

#include <gtest/gtest.h>

#include <vector>

#include "support/traces.h"

namespace modcache::policy {
namespace {

using testing::hash_of;

TEST(GhostsTest, are_taken_once) {
  std::vector<GhostSlot> slots(1024);
  Ghosts ghosts(slots.data(), slots.size());
  EXPECT_FALSE(ghosts.take(hash_of(1), 100));
  ghosts.add(hash_of(1), 100);
  EXPECT_FALSE(ghosts.take(hash_of(2), 100));
  EXPECT_TRUE(ghosts.take(hash_of(1), 100));
  EXPECT_FALSE(ghosts.take(hash_of(1), 100));
}

TEST(GhostsTest, are_forgotten_when_many_more_came) {
  std::vector<GhostSlot> slots(1024);
  Ghosts ghosts(slots.data(), slots.size());
  for (std::uint32_t i = 0; i < 4000; ++i) ghosts.add(hash_of(i), 100);
  int old = 0;
  int recent = 0;
  for (std::uint32_t i = 0; i < 100; ++i) old += ghosts.take(hash_of(i), 100) ? 1 : 0;
  for (std::uint32_t i = 3900; i < 4000; ++i) recent += ghosts.take(hash_of(i), 100) ? 1 : 0;
  EXPECT_EQ(old, 0);
  EXPECT_GE(recent, 70);
}

}  // namespace
}  // namespace modcache::policy
