// SPDX-License-Identifier: Apache-2.0
#include "policy/shadow.h"

#include <gtest/gtest.h>

#include <memory>

#include "support/traces.h"

namespace modcache::policy {
namespace {

using testing::hash_of;

constexpr std::uint64_t kRoom = 500;

double found_by(Way way, const testing::Trace& trace) {
  const auto state = std::make_unique<ShadowState>();
  Shadow shadow(*state, way);
  std::size_t found = 0;
  Tick now = 0;
  for (const std::uint32_t sample : trace) {
    found += shadow.find_or_insert(hash_of(sample), kRoom, ++now) ? 1 : 0;
  }
  return static_cast<double>(found) / static_cast<double>(trace.size());
}

TEST(ShadowTest, finds_everything_that_fits) {
  const auto trace = testing::shuffled_epochs({0, kRoom * 3 / 4}, 10, 1);
  for (const Way way : {Way::kStable, Way::kOpen, Way::kRecent}) {
    EXPECT_GE(found_by(way, trace), 0.89);
  }
}

TEST(ShadowTest, tells_the_ways_apart) {
  const auto epochs = testing::sequential_epochs({0, 2 * kRoom}, 10);
  EXPECT_GE(found_by(Way::kStable, epochs), 0.42);
  EXPECT_LE(found_by(Way::kRecent, epochs), 0.02);
  const auto zipf = testing::zipf({0, 10 * kRoom}, 1.0, 50 * kRoom, 1);
  EXPECT_GE(found_by(Way::kOpen, zipf), found_by(Way::kRecent, zipf) + 0.03);
  const auto moving = testing::moving_set(kRoom);
  EXPECT_GE(found_by(Way::kRecent, moving), found_by(Way::kOpen, moving) + 0.05);
}

TEST(ShadowTest, shrinks_when_there_is_less_room) {
  const auto state = std::make_unique<ShadowState>();
  Shadow shadow(*state, Way::kOpen);
  Tick now = 0;
  for (std::uint32_t i = 0; i < 1000; ++i) shadow.find_or_insert(hash_of(i), kRoom, ++now);
  for (std::uint32_t i = 1000; i < 2000; ++i) shadow.find_or_insert(hash_of(i), 50, ++now);
  EXPECT_LE(state->entries, 51u);
}

// A process died while writing, or another program wrote there.
TEST(ShadowTest, works_on_whatever_bytes_it_finds) {
  const auto state = std::make_unique<ShadowState>();
  testing::Random random(1);
  for (auto& slot : state->slots) {
    slot.hash = random.next();
    slot.usage = random.next();
  }
  state->entries = ~std::uint64_t{0};
  state->s3fifo.turn = ~Tick{0};
  state->s3fifo.inserts = ~std::uint32_t{0};
  state->gate.vacancies = ~std::uint32_t{0};
  Shadow shadow(*state, Way::kOpen);
  shadow.set_horizon(1000);
  Tick now = 0;
  for (std::uint32_t i = 0; i < 5000; ++i) {
    shadow.find_or_insert(hash_of(i % 300), kRoom, ++now);
    if (i % 256 == 0) shadow.recount();
  }
  std::size_t found = 0;
  for (std::uint32_t i = 0; i < 3000; ++i) {
    found += shadow.find_or_insert(hash_of(i % 300), kRoom, ++now) ? 1 : 0;
  }
  EXPECT_GE(found, 2900u);
}

}  // namespace
}  // namespace modcache::policy
