// SPDX-License-Identifier: Apache-2.0
#include "policy/stable.h"

#include <gtest/gtest.h>

#include "support/traces.h"

namespace modcache::policy {
namespace {

using testing::hash_of;

int admitted_of(StableGate& gate, std::uint32_t count) {
  int admitted = 0;
  for (std::uint32_t i = 0; i < count; ++i) admitted += gate.admits(hash_of(i)) ? 1 : 0;
  return admitted;
}

TEST(StableGateTest, lets_few_in) {
  StableGateState state{};
  StableGate gate(state);
  const int admitted = admitted_of(gate, 32'000);
  EXPECT_GT(admitted, 800);
  EXPECT_LT(admitted, 1200);
}

TEST(StableGateTest, not_always_the_same_ones) {
  StableGateState state{};
  StableGate gate(state);
  int other = 0;
  for (std::uint32_t i = 0; i < 1000; ++i) {
    const bool before = gate.admits(hash_of(i));
    other += before != gate.admits(hash_of(i)) ? 1 : 0;
  }
  EXPECT_GT(other, 30);
}

TEST(StableGateTest, opens_while_those_that_leave_had_been_abandoned) {
  StableGateState state{};
  StableGate gate(state);
  gate.evicted(/*was_abandoned=*/true, 1000);
  for (std::uint32_t i = 0; i < 500; ++i) {
    ASSERT_TRUE(gate.admits(hash_of(i)));
    gate.evicted(true, 1000);
  }
  for (std::uint32_t i = 0; i < 10; ++i) gate.evicted(/*was_abandoned=*/false, 1000);
  EXPECT_LT(admitted_of(gate, 100), 20);
}

}  // namespace
}  // namespace modcache::policy
