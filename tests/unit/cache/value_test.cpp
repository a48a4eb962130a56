// SPDX-License-Identifier: Apache-2.0
#include "cache/value.h"

#include <gtest/gtest.h>

#include <memory>

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

TEST(EntryTest, is_valid_unless_it_is_too_old_or_refuted) {
  EXPECT_TRUE(is_valid(stored_ago(0), 10));
  EXPECT_FALSE(is_valid(stored_ago(10), 10));
  Entry provisional = stored_ago(0);
  const auto confirmation = std::make_shared<Confirmation>(nullptr);
  provisional.confirmation = confirmation;
  EXPECT_TRUE(is_valid(provisional, 0)) << "as long as it is undecided";
  confirmation->refute();
  EXPECT_FALSE(is_valid(provisional, 0));
}

}  // namespace
}  // namespace modcache::cache
