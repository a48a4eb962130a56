// SPDX-License-Identifier: Apache-2.0
#include "policy/reuse.h"

#include <gtest/gtest.h>

#include <memory>

#include "support/traces.h"

namespace modcache::policy {
namespace {

using testing::hash_of;

class ReuseTest : public ::testing::Test {
 protected:
  void see(const testing::Trace& trace) {
    for (const std::uint32_t sample : trace) reuse_.saw(hash_of(sample), ++now_);
  }

  std::unique_ptr<ReuseState> state_ = std::make_unique<ReuseState>();
  Reuse reuse_{*state_};
  Tick now_ = ~Tick{0} - 500;  // wraps around meanwhile
};

TEST_F(ReuseTest, says_nothing_before_enough_was_seen) {
  see(testing::sequential_epochs({0, 100}, 1));
  EXPECT_EQ(reuse_.horizon(), 0u);
}

TEST_F(ReuseTest, is_somewhat_longer_than_an_epoch) {
  see(testing::sequential_epochs({0, 1000}, 5));
  EXPECT_GE(reuse_.horizon(), 1300u);
  EXPECT_LE(reuse_.horizon(), 2000u);
}

TEST_F(ReuseTest, is_longer_than_two_epochs_in_changing_order) {
  see(testing::shuffled_epochs({0, 1000}, 6, 1));
  EXPECT_GE(reuse_.horizon(), 2000u);
  EXPECT_LE(reuse_.horizon(), 4000u);
}

TEST_F(ReuseTest, follows_what_is_asked_for_now) {
  see(testing::sequential_epochs({0, 1000}, 5));
  see(testing::sequential_epochs({5000, 50}, 2000));
  EXPECT_LE(reuse_.horizon(), 120u);
}

}  // namespace
}  // namespace modcache::policy
