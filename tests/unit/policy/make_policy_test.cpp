// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>

#include "policy/policy.h"
#include "support/policy_tier.h"
#include "support/traces.h"

namespace modcache::policy {
namespace {

using testing::PolicyTier;

constexpr std::size_t kRoomOfEach = 400;

double found_by(Kind kind, const testing::Trace& trace) {
  const auto policy = make_policy(kind);
  return PolicyTier(*policy, kRoomOfEach).found_of(trace);
}

TEST(MakePolicyTest, each_finds_what_it_is_for) {
  const auto epochs = testing::sequential_epochs({0, 2 * kRoomOfEach}, 10);
  EXPECT_NEAR(found_by(Kind::kKeep, epochs), 0.45, 0.001);
  EXPECT_LE(found_by(Kind::kLru, epochs), 0.01);
  const auto zipf = testing::zipf({0, 10 * kRoomOfEach}, 1.0, 100 * kRoomOfEach, 1);
  EXPECT_GE(found_by(Kind::kS3Fifo, zipf), found_by(Kind::kLru, zipf) + 0.03);
  EXPECT_GE(found_by(Kind::kLru, testing::moving_set(kRoomOfEach)), 0.9);
}

TEST(MakePolicyTest, each_finds_all_of_what_fits) {
  const auto epochs = testing::shuffled_epochs({0, kRoomOfEach}, 10, 1);
  for (const Kind kind : {Kind::kAuto, Kind::kLru, Kind::kS3Fifo, Kind::kKeep}) {
    EXPECT_DOUBLE_EQ(found_by(kind, epochs), 0.9) << kind_name(kind);
  }
}

TEST(MakePolicyTest, state_may_lie_in_given_memory_and_outlives_the_policy) {
  struct alignas(64) Memory {
    std::byte bytes[kSharedStateBytes] = {};
  };
  const auto memory = std::make_unique<Memory>();
  const auto epochs = testing::zipf({0, 10 * kRoomOfEach}, 1.0, 50 * kRoomOfEach, 1);
  for (const Kind kind : {Kind::kAuto, Kind::kS3Fifo, Kind::kLru, Kind::kKeep, Kind::kAuto}) {
    const auto policy = make_policy(kind, memory.get());
    EXPECT_GE(PolicyTier(*policy, kRoomOfEach).found_of(epochs), 0.55) << kind_name(kind);
  }
}

}  // namespace
}  // namespace modcache::policy
