// SPDX-License-Identifier: Apache-2.0
#include "cache/traffic_gate.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "base/hash.h"

namespace modcache::cache {
namespace {

constexpr auto kWindow = TrafficGate::kWindow;

class TrafficGateTest : public ::testing::Test {
 protected:
  TrafficGateTest() { gate_.prepare(); }

  static Digest128 address_of(int number) { return xxh3_128("key " + std::to_string(number)); }
  TrafficGate::Question question(int number, bool may_store = true) const {
    return {scope_, address_of(number), may_store};
  }
  Passage ask(int number, bool may_store = true) { return gate_.ask(question(number, may_store)); }
  // Keys that were never asked for, and are not asked for again.
  Passage ask_new(bool may_store = true) { return ask(next_new_++, may_store); }
  void ask_new_ones(std::uint32_t count, bool may_store = true) {
    for (std::uint32_t i = 0; i < count; ++i) ask_new(may_store);
  }
  void close(bool may_store = true) {
    ask_new_ones(kWindow, may_store);
    ASSERT_TRUE(gate_.is_closed(scope_));
  }
  bool is_in_sample(int number) const {
    return address_of(number).high % TrafficGate::kSampleOneIn == 0;
  }
  int next_in_sample() {
    while (!is_in_sample(next_new_)) ++next_new_;
    return next_new_++;
  }

  TrafficGate gate_;
  std::string scope_ = "encoder@1";
  int next_new_ = 1'000'000;
};

TEST_F(TrafficGateTest, a_result_is_stored_from_the_second_sight_of_its_key_on) {
  EXPECT_EQ(ask(1), Passage::kLookUp);
  EXPECT_EQ(ask(1), Passage::kStore);
  EXPECT_EQ(ask(1), Passage::kStore);
  EXPECT_EQ(ask(2), Passage::kLookUp);
}

TEST_F(TrafficGateTest, a_hit_is_a_sight_too) {
  gate_.note_hit(question(1));
  EXPECT_EQ(ask(1), Passage::kStore);
}

TEST_F(TrafficGateTest, keys_that_never_repeat_pass_by_after_one_window) {
  ask_new_ones(kWindow - 1);
  EXPECT_FALSE(gate_.is_closed(scope_));
  ask_new();
  EXPECT_TRUE(gate_.is_closed(scope_));
  int looked_up = 0;
  for (int i = 0; i < 64'000; ++i) looked_up += goes_past(ask_new()) ? 0 : 1;
  EXPECT_NEAR(looked_up, 1000, 150) << "the sample";
}

TEST_F(TrafficGateTest, a_scope_of_which_one_key_in_fifty_repeats_stays_open) {
  for (int i = 0; i < 100'000; ++i) {
    ask_new();
    if (i % 50 == 0) ask(i % 3);
  }
  EXPECT_FALSE(gate_.is_closed(scope_));
}

TEST_F(TrafficGateTest, each_scope_has_its_own_gate) {
  close();
  scope_ = "encoder@2";
  EXPECT_FALSE(gate_.is_closed(scope_));
  EXPECT_EQ(ask_new(), Passage::kLookUp);
}

// The users of a key that is asked for again are served however closed the gate is.
TEST_F(TrafficGateTest, no_key_passes_by_twice) {
  close();
  int passed = 0;
  for (int i = 0; i < 1000; ++i) {
    const int key = next_new_++;
    passed += goes_past(ask(key)) ? 1 : 0;
    EXPECT_EQ(ask(key), Passage::kStore);
  }
  EXPECT_GT(passed, 0);
}

TEST_F(TrafficGateTest, sixty_four_repeated_keys_open_it_however_few_they_are) {
  close();
  int calls = 0;
  while (gate_.is_closed(scope_)) ask(calls++ % 10);
  EXPECT_EQ(calls, 10 + static_cast<int>(TrafficGate::kEnoughRepeated));
}

TEST_F(TrafficGateTest, it_opens_for_a_thousand_keys_before_they_came_three_times) {
  close();
  std::uint64_t random = 1;
  int calls = 0;
  for (; gate_.is_closed(scope_); ++calls) {
    random = random * 6364136223846793005U + 1442695040888963407U;
    ask(static_cast<int>((random >> 33) % 1000));
  }
  EXPECT_LT(calls, 1000);
  RecordProperty("calls", calls);
}

TEST_F(TrafficGateTest, rare_repetitions_do_not_open_it) {
  close();
  for (int i = 0; i < 100'000; ++i) {
    ask_new();
    if (i % 200 == 0) ask(1);
  }
  EXPECT_TRUE(gate_.is_closed(scope_));
}

// As a directory that an earlier process filled: each of its keys comes here for the first time.
TEST_F(TrafficGateTest, four_keys_of_the_sample_that_are_found_open_it) {
  close();
  for (int found = 1; found <= 4; ++found) {
    EXPECT_TRUE(gate_.is_closed(scope_)) << found;
    EXPECT_EQ(ask(next_in_sample()), Passage::kLookUp);
    gate_.note_found(scope_, 1);
  }
  EXPECT_FALSE(gate_.is_closed(scope_));
}

TEST_F(TrafficGateTest, plain_hits_in_the_sample_open_it_too) {
  close();
  for (int found = 0; found < 4; ++found) gate_.note_hit(question(next_in_sample()));
  EXPECT_FALSE(gate_.is_closed(scope_));
}

TEST_F(TrafficGateTest, hits_keep_it_open) {
  for (int i = 0; i < 100'000; ++i) gate_.note_hit(question(next_new_++));
  EXPECT_FALSE(gate_.is_closed(scope_));
}

TEST_F(TrafficGateTest, it_closes_again_one_window_after_the_last_repetition) {
  close();
  for (int i = 0; i < 200; ++i) ask(i % 10);
  ASSERT_FALSE(gate_.is_closed(scope_));
  ask_new_ones(2 * kWindow);
  EXPECT_TRUE(gate_.is_closed(scope_));
}

TEST_F(TrafficGateTest, a_plain_hit_is_looked_for_only_where_the_key_would_not_pass_by) {
  EXPECT_FALSE(gate_.would_pass_by(question(1)));
  EXPECT_EQ(ask(1), Passage::kLookUp) << "the question was noted as a sight";
  close();
  EXPECT_FALSE(gate_.would_pass_by(question(1)));
  EXPECT_FALSE(gate_.would_pass_by(question(next_in_sample())));
  int new_key = next_new_++;
  while (is_in_sample(new_key)) new_key = next_new_++;
  EXPECT_TRUE(gate_.would_pass_by(question(new_key)));
  EXPECT_TRUE(goes_past(ask(new_key)));
}

// Nothing is stored there, so a second sight finds nothing either.
TEST_F(TrafficGateTest, where_a_call_may_only_read_repetitions_do_not_count_and_hits_do) {
  close(/*may_store=*/false);
  int new_key = next_new_++;
  while (is_in_sample(new_key)) new_key = next_new_++;
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(goes_past(ask(new_key, /*may_store=*/false)));
  EXPECT_TRUE(gate_.would_pass_by(question(new_key, /*may_store=*/false)));
  for (int found = 0; found < 4; ++found) {
    EXPECT_EQ(ask(next_in_sample(), /*may_store=*/false), Passage::kLookUp);
    gate_.note_found(scope_, 1);
  }
  EXPECT_FALSE(gate_.is_closed(scope_));
}

TEST_F(TrafficGateTest, what_is_forgotten_is_learned_anew) {
  ask(1);
  close();
  gate_.forget();
  EXPECT_FALSE(gate_.is_closed(scope_));
  EXPECT_EQ(ask(1), Passage::kLookUp);
}

TEST(StoreAllGuardTest, holds_for_its_thread_and_its_time_and_nests) {
  EXPECT_FALSE(StoreAllGuard::stores_all_here());
  {
    const StoreAllGuard outer;
    {
      const StoreAllGuard inner;
      EXPECT_TRUE(StoreAllGuard::stores_all_here());
    }
    EXPECT_TRUE(StoreAllGuard::stores_all_here());
  }
  EXPECT_FALSE(StoreAllGuard::stores_all_here());
}

}  // namespace
}  // namespace modcache::cache
