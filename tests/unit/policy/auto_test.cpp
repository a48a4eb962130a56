// SPDX-License-Identifier: Apache-2.0
#include "policy/auto.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "support/policy_tier.h"
#include "support/traces.h"

namespace modcache::policy {
namespace {

using testing::PolicyTier;

constexpr std::size_t kRoomOfAuto = 400;

class AutoTest : public ::testing::Test {
 protected:
  double found_of(const testing::Trace& trace) { return tier_.found_of(trace); }

  std::shared_ptr<SharedState> state_ = std::make_shared<SharedState>();
  Auto auto_{state_};
  PolicyTier tier_{auto_, kRoomOfAuto};
};

TEST_F(AutoTest, keeps_a_stable_part_before_there_is_evidence) {
  EXPECT_EQ(auto_.way(), Way::kStable);
  found_of(testing::sequential_epochs({0, 2 * kRoomOfAuto}, 1));
  EXPECT_EQ(auto_.way(), Way::kStable);
}

TEST_F(AutoTest, keeps_a_stable_part_of_sequential_epochs) {
  EXPECT_GE(found_of(testing::sequential_epochs({0, 2 * kRoomOfAuto}, 10)), 0.40);
  EXPECT_EQ(auto_.way(), Way::kStable);
}

TEST_F(AutoTest, keeps_a_stable_part_of_shuffled_epochs) {
  EXPECT_GE(found_of(testing::shuffled_epochs({0, 2 * kRoomOfAuto}, 10, 1)), 0.40);
  EXPECT_EQ(auto_.way(), Way::kStable);
}

TEST_F(AutoTest, opens_where_some_are_asked_for_more_often) {
  const auto trace = testing::zipf({0, 10 * kRoomOfAuto}, 1.0, 100 * kRoomOfAuto, 1);
  EXPECT_GE(found_of(trace), 0.68);
  EXPECT_EQ(auto_.way(), Way::kOpen);
}

TEST_F(AutoTest, follows_a_set_that_moves_on) {
  EXPECT_GE(found_of(testing::moving_set(kRoomOfAuto)), 0.85);
  EXPECT_EQ(auto_.way(), Way::kRecent);
}

TEST_F(AutoTest, comes_back_to_a_stable_part) {
  found_of(testing::moving_set(kRoomOfAuto));
  ASSERT_EQ(auto_.way(), Way::kRecent);
  const testing::Samples others{100'000, 2 * kRoomOfAuto};
  found_of(testing::sequential_epochs(others, 15));
  EXPECT_EQ(auto_.way(), Way::kStable);
  EXPECT_GE(found_of(testing::sequential_epochs(others, 5)), 0.40);
}

TEST_F(AutoTest, does_not_keep_yesterdays_stable_part) {
  found_of(testing::sequential_epochs({0, 2 * kRoomOfAuto}, 10));
  const testing::Samples todays{100'000, 2 * kRoomOfAuto};
  found_of(testing::sequential_epochs(todays, 3));
  EXPECT_GE(found_of(testing::sequential_epochs(todays, 3)), 0.40);
}

// One of eight processes, each of which gets a different share of the samples in each epoch.
TEST_F(AutoTest, keeps_a_stable_part_of_shares_of_shuffled_epochs) {
  const auto whole = testing::shuffled_epochs({0, 2 * kRoomOfAuto}, 80, 1);
  testing::Trace share;
  for (std::size_t i = 0; i < whole.size(); i += 8) share.push_back(whole[i]);
  EXPECT_GE(found_of(share), 0.38);
}

// Two tiers with one state, as two processes have them that use one directory.
TEST_F(AutoTest, what_one_process_saw_another_one_knows) {
  found_of(testing::moving_set(kRoomOfAuto));
  Auto other(state_);
  EXPECT_EQ(other.way(), Way::kRecent);
}

TEST_F(AutoTest, works_on_whatever_bytes_it_finds) {
  testing::Random random(1);
  auto* const bytes = reinterpret_cast<unsigned char*>(state_.get());
  for (std::size_t i = 0; i < sizeof(SharedState); ++i) {
    bytes[i] = static_cast<unsigned char>(random.next());
  }
  found_of(testing::sequential_epochs({0, 2 * kRoomOfAuto}, 40));
  EXPECT_GE(found_of(testing::sequential_epochs({0, 2 * kRoomOfAuto}, 10)), 0.40);
}

TEST_F(AutoTest, several_threads_may_use_one_state_at_once) {
  std::vector<std::thread> threads;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back([this, seed] {
      Auto mine(state_);
      PolicyTier tier(mine, kRoomOfAuto);
      tier.found_of(testing::shuffled_epochs({0, 2 * kRoomOfAuto}, 10, seed));
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(auto_.way(), Way::kStable);
}

}  // namespace
}  // namespace modcache::policy
