// SPDX-License-Identifier: Apache-2.0
#include "policy/lru.h"

#include <gtest/gtest.h>

namespace modcache::policy {
namespace {

TEST(LruTest, what_was_used_longest_ago_has_the_smallest_rank) {
  Lru lru;
  const Usage first = lru.inserted(1, 10);
  const Usage second = lru.inserted(2, 11);
  EXPECT_LT(lru.rank(first, 12), lru.rank(second, 12));
  EXPECT_GT(lru.rank(lru.used(first, 12), 12), lru.rank(second, 12));
}

TEST(LruTest, takes_all_that_is_new) {
  Lru lru;
  EXPECT_TRUE(lru.admits(1, 10));
}

TEST(LruTest, the_order_survives_ticks_that_wrap_around) {
  Lru lru;
  const Usage before = lru.inserted(1, ~Tick{0} - 1);
  const Usage after = lru.inserted(2, 3);
  EXPECT_LT(lru.rank(before, 5), lru.rank(after, 5));
}

// Another process uses it after this one took the time.
TEST(LruTest, what_is_used_meanwhile_is_not_taken_for_the_oldest) {
  Lru lru;
  const Usage meanwhile = lru.used(lru.inserted(1, 5), 1001);
  EXPECT_GT(lru.rank(meanwhile, 1000), lru.rank(lru.inserted(2, 999), 1000));
}

TEST(LruTest, what_is_spared_stays_the_oldest_for_ever) {
  Lru lru;
  Usage usage = lru.inserted(1, 0);
  for (std::uint64_t ticks = 1; ticks < (std::uint64_t{3} << 32); ticks += 1U << 30) {
    const auto now = static_cast<Tick>(ticks);
    usage = lru.spared(usage, now);
    EXPECT_LT(lru.rank(usage, now), lru.rank(lru.inserted(2, now), now));
  }
}

TEST(LruTest, leaves_the_holders_part_alone) {
  Lru lru;
  Usage usage = lru.inserted(1, 10);
  usage.of_holder = 77;
  EXPECT_EQ(lru.used(usage, 11).of_holder, 77);
  EXPECT_EQ(lru.spared(usage, 11).of_holder, 77);
}

}  // namespace
}  // namespace modcache::policy
