// SPDX-License-Identifier: Apache-2.0
#include "policy/policy.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>

#include "support/policy_tier.h"
#include "support/traces.h"

namespace modcache::policy {
namespace {

using testing::PolicyTier;

constexpr std::size_t kPolicyRoom = 400;
constexpr Kind kKinds[] = {Kind::kAuto, Kind::kLru, Kind::kKeep};

TEST(PolicyTest, NamesAreTheValuesOfTheSetting) {
  EXPECT_EQ(kind_name(Kind::kAuto), "auto");
  EXPECT_EQ(kind_name(Kind::kLru), "lru");
  EXPECT_EQ(kind_name(Kind::kKeep), "keep");
}

TEST(PolicyTest, AllFindEverythingThatFits) {
  const auto epochs = testing::shuffled_epochs({0, kPolicyRoom}, 10, 1);
  for (const Kind kind : kKinds) {
    EXPECT_DOUBLE_EQ(PolicyTier(*make_policy(kind), kPolicyRoom).hit_rate(epochs), 0.9)
        << kind_name(kind);
  }
}

TEST(PolicyTest, EachFindsWhatItIsFor) {
  const auto hit_rate = [](Kind kind, const testing::Trace& trace) {
    return PolicyTier(*make_policy(kind), kPolicyRoom).hit_rate(trace);
  };
  const auto epochs = testing::sequential_epochs({0, 2 * kPolicyRoom}, 10);
  EXPECT_NEAR(hit_rate(Kind::kKeep, epochs), 0.45, 0.001);
  EXPECT_LE(hit_rate(Kind::kLru, epochs), 0.01);
  EXPECT_GE(hit_rate(Kind::kLru, testing::moving_set(kPolicyRoom)), 0.9);
}

TEST(PolicyTest, RetainedEntriesStayOldWhenTicksWrapAround) {
  for (const Kind kind : {Kind::kAuto, Kind::kLru}) {
    const auto policy = make_policy(kind);
    policy->set_capacity(kPolicyRoom);
    Usage usage = policy->inserted(1, 0);
    for (std::uint64_t ticks = 1; ticks < (std::uint64_t{3} << 32); ticks += 1U << 30) {
      const auto now = static_cast<Tick>(ticks);
      usage = policy->retained(usage, now);
      EXPECT_LT(policy->rank(usage, now), policy->rank(policy->inserted(2, now), now));
    }
  }
}

TEST(PolicyTest, TheTiersPartOfUsageStaysAsItIs) {
  for (const Kind kind : kKinds) {
    const auto policy = make_policy(kind);
    Usage usage = policy->inserted(1, 10);
    usage.of_holder = 77;
    EXPECT_EQ(policy->used(usage, 11).of_holder, 77);
    EXPECT_EQ(policy->retained(usage, 11).of_holder, 77);
  }
}

TEST(LruTest, ReplacesTheEntryThatWasUsedLongestAgo) {
  const auto lru = make_policy(Kind::kLru);
  const Usage first = lru->inserted(1, 10);
  const Usage second = lru->inserted(2, 11);
  EXPECT_LT(lru->rank(first, 12), lru->rank(second, 12));
  EXPECT_GT(lru->rank(lru->used(first, 12), 12), lru->rank(second, 12));
  EXPECT_TRUE(lru->may_replace(first, 3, 13));
}

TEST(LruTest, TheOrderSurvivesTicksThatWrapAround) {
  const auto lru = make_policy(Kind::kLru);
  const Usage before = lru->inserted(1, ~Tick{0} - 1);
  const Usage after = lru->inserted(2, 3);
  EXPECT_LT(lru->rank(before, 5), lru->rank(after, 5));
}

// Another process uses it after this one read the time.
TEST(LruTest, AnEntryUsedConcurrentlyIsNotTheOldest) {
  const auto lru = make_policy(Kind::kLru);
  const Usage concurrent = lru->used(lru->inserted(1, 5), 1001);
  EXPECT_GT(lru->rank(concurrent, 1000), lru->rank(lru->inserted(2, 999), 1000));
}

TEST(KeepTest, ReplacesNothing) {
  const auto keep = make_policy(Kind::kKeep);
  EXPECT_FALSE(keep->may_replace(keep->inserted(1, 10), 2, 1'000'000));
}

TEST(KeepTest, ABudgetThatShrinksEvictsTheNewestWhateverWasUsed) {
  const auto keep = make_policy(Kind::kKeep);
  const Usage first = keep->inserted(1, 10);
  const Usage second = keep->inserted(2, 11);
  EXPECT_LT(keep->rank(keep->used(second, 50), 51), keep->rank(first, 51));
}

}  // namespace
}  // namespace modcache::policy
