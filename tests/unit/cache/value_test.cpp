// SPDX-License-Identifier: Apache-2.0
#include "cache/value.h"

#include <gtest/gtest.h>

namespace modcache::cache {
namespace {

Entry stored_ago(std::int64_t age_s) {
  Entry entry;
  entry.stored_at_us = now_us() - age_s * 1'000'000;
  return entry;
}

TEST(EntryTest, expires_when_it_has_the_greatest_age) {
  EXPECT_FALSE(is_expired(stored_ago(8), 10));
  EXPECT_TRUE(is_expired(stored_ago(10), 10));
}

TEST(EntryTest, never_expires_without_a_greatest_age_or_where_it_is_ageless) {
  EXPECT_FALSE(is_expired(stored_ago(1'000'000'000), 0));
  Entry ageless;
  ageless.stored_at_us = kAgeless;
  EXPECT_FALSE(is_expired(ageless, 1));
}

}  // namespace
}  // namespace modcache::cache
