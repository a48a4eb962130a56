// SPDX-License-Identifier: Apache-2.0
#include "base/confirmation.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

namespace modcache {
namespace {

struct Told final : Evidence {
  explicit Told(bool truth) : is_true(truth) {}
  bool holds() const override {
    ++checks;
    return is_true;
  }
  bool is_due() const override { return true; }

  const bool is_true;
  mutable std::atomic<int> checks{0};
};

TEST(ConfirmationTest, says_what_the_evidence_says_and_asks_once) {
  for (const bool truth : {true, false}) {
    const auto evidence = std::make_shared<Told>(truth);
    Confirmation confirmation(evidence);
    EXPECT_FALSE(confirmation.is_confirmed() || confirmation.is_refuted());
    EXPECT_EQ(confirmation.settle(*evidence), truth);
    EXPECT_EQ(confirmation.settle(*evidence), truth);
    EXPECT_EQ(confirmation.is_confirmed(), truth);
    EXPECT_EQ(confirmation.is_refuted(), !truth);
    EXPECT_EQ(evidence->checks, 1);
  }
}

TEST(ConfirmationTest, takes_runs_until_it_is_settled) {
  const auto evidence = std::make_shared<Told>(true);
  Confirmation confirmation(evidence);
  EXPECT_TRUE(confirmation.takes_more());
  EXPECT_TRUE(confirmation.takes_more());
  confirmation.settle(*evidence);
  EXPECT_FALSE(confirmation.takes_more());
}

TEST(ConfirmationTest, keeps_the_first_verdict) {
  Confirmation confirmation(nullptr);
  confirmation.refute();
  confirmation.confirm();
  EXPECT_TRUE(confirmation.is_refuted());
  EXPECT_FALSE(confirmation.settle(Told(true)));
}

TEST(ConfirmationTest, keeps_no_evidence_alive) {
  auto evidence = std::make_shared<Told>(true);
  const Confirmation confirmation(evidence);
  EXPECT_EQ(confirmation.evidence(), evidence);
  evidence = nullptr;
  EXPECT_EQ(confirmation.evidence(), nullptr);
}

TEST(ConfirmationTest, is_settled_once_by_many_threads) {
  const auto evidence = std::make_shared<Told>(true);
  Confirmation confirmation(evidence);
  std::thread other([&] { EXPECT_TRUE(confirmation.settle(*evidence)); });
  EXPECT_TRUE(confirmation.settle(*evidence));
  other.join();
  EXPECT_EQ(evidence->checks, 1);
}

}  // namespace
}  // namespace modcache
