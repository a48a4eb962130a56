// SPDX-License-Identifier: Apache-2.0
#include "cache/verify_watch.h"

#include <gmock/gmock.h>

#include <string>
#include <thread>

#include "support/captured_log.h"

namespace modcache::cache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// In a thread of its own, whose draws nothing else has begun.
template <typename Work>
void in_new_thread(Work work) {
  std::thread(work).join();
}

TEST(HitDrawTest, a_share_of_nothing_chooses_none_and_one_of_all_chooses_each) {
  in_new_thread([] {
    EXPECT_TRUE(HitDraw::chosen(0, 1000).empty());
    EXPECT_TRUE(HitDraw::spares(0, 1000));
    EXPECT_EQ(HitDraw::chosen(1, 4), (std::vector<std::size_t>{0, 1, 2, 3}));
    EXPECT_FALSE(HitDraw::spares(1, 1));
  });
}

TEST(HitDrawTest, chooses_its_share_one_by_one_and_in_batches) {
  in_new_thread([] {
    std::size_t one_by_one = 0;
    for (int i = 0; i < 100'000; ++i) one_by_one += HitDraw::chosen(0.01, 1).size();
    EXPECT_NEAR(static_cast<double>(one_by_one), 1000, 200);
    std::size_t in_batches = 0;
    for (int i = 0; i < 1000; ++i) in_batches += HitDraw::chosen(0.01, 100).size();
    EXPECT_NEAR(static_cast<double>(in_batches), 1000, 200);
  });
}

TEST(HitDrawTest, no_place_in_a_batch_is_preferred) {
  in_new_thread([] {
    std::vector<int> counts(10);
    for (int i = 0; i < 10'000; ++i) {
      for (const std::size_t place : HitDraw::chosen(0.1, 10)) ++counts.at(place);
    }
    for (const int count : counts) EXPECT_NEAR(count, 1000, 250);
  });
}

// The fast path asks, and leaves the hit to the ordinary way, which asks again.
TEST(HitDrawTest, a_hit_that_is_not_spared_is_the_one_that_is_chosen_next) {
  in_new_thread([] {
    int chosen = 0;
    for (int i = 0; i < 100'000; ++i) {
      if (HitDraw::spares(0.01, 1)) continue;
      EXPECT_FALSE(HitDraw::spares(0.01, 1));
      EXPECT_EQ(HitDraw::chosen(0.01, 1).size(), 1u);
      ++chosen;
    }
    EXPECT_NEAR(chosen, 1000, 200);
  });
}

TEST(HitDrawTest, another_share_holds_from_the_next_hit_on) {
  in_new_thread([] {
    EXPECT_TRUE(HitDraw::chosen(1e-9, 1).empty());
    EXPECT_EQ(HitDraw::chosen(1, 1).size(), 1u);
  });
}

class VerifyWatchTest : public ::testing::Test {
 protected:
  void note(const std::string& scope, const std::string& difference) {
    watch_.note({scope, "Encoder.forward", "key", difference});
  }
  void note_same(const std::string& scope, int count) {
    for (int i = 0; i < count; ++i) note(scope, "");
  }

  VerifyWatch watch_;
  const testing::CapturedLog log_;
};

TEST_F(VerifyWatchTest, a_scope_of_which_each_comparison_differs_is_switched_off_after_three) {
  note("scope", "2 of 4 values");
  note("scope", "2 of 4 values");
  EXPECT_FALSE(watch_.has_switched_off());
  EXPECT_FALSE(watch_.is_switched_off("scope"));
  note("scope", "2 of 4 values");
  EXPECT_TRUE(watch_.has_switched_off());
  EXPECT_TRUE(watch_.is_switched_off("scope"));
  EXPECT_FALSE(watch_.is_switched_off("another"));
}

TEST_F(VerifyWatchTest, one_message_says_what_happened_and_what_to_do) {
  for (int i = 0; i < 10; ++i) note("encoder@1", "2 of 4 values differ");
  const auto messages = log_.about("verify_share");
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_THAT(messages[0],
              AllOf(HasSubstr("3 of 3"), HasSubstr("'encoder@1'"), HasSubstr("Encoder.forward"),
                    HasSubstr("'key'"), HasSubstr("2 of 4 values differ"),
                    HasSubstr("SWITCHED OFF"), HasSubstr("modcache clear")));
}

TEST_F(VerifyWatchTest, one_in_a_hundred_may_differ) {
  for (int i = 0; i < 50; ++i) {
    note_same("scope", 120);
    note("scope", "all of it");
  }
  EXPECT_FALSE(watch_.is_switched_off("scope"));
}

TEST_F(VerifyWatchTest, what_agreed_long_ago_does_not_cover_what_differs_now) {
  note_same("scope", 1'000'000);
  int differences = 0;
  while (!watch_.is_switched_off("scope") && differences < 1000) {
    note("scope", "all of it");
    ++differences;
  }
  EXPECT_LT(differences, 50);
}

TEST_F(VerifyWatchTest, scopes_do_not_answer_for_each_other) {
  note("a", "x");
  note("b", "x");
  note("c", "x");
  EXPECT_FALSE(watch_.has_switched_off());
}

TEST_F(VerifyWatchTest, scopes_without_number_do_not_switch_one_on_again) {
  for (int i = 0; i < 3; ++i) note("scope", "x");
  for (int i = 0; i < 5000; ++i) note("scope " + std::to_string(i), "");
  EXPECT_TRUE(watch_.is_switched_off("scope"));
}

TEST_F(VerifyWatchTest, forgets_one_scope_and_no_other) {
  for (int i = 0; i < 3; ++i) note("scope", "x");
  watch_.forget("other");
  EXPECT_TRUE(watch_.is_switched_off("scope"));
  watch_.forget("scope");
  EXPECT_FALSE(watch_.has_switched_off());
  EXPECT_FALSE(watch_.is_switched_off("scope"));
}

TEST_F(VerifyWatchTest, forgets_all_without_a_scope) {
  for (int i = 0; i < 3; ++i) note("scope", "x");
  watch_.forget("");
  EXPECT_FALSE(watch_.has_switched_off());
}

}  // namespace
}  // namespace modcache::cache
