// SPDX-License-Identifier: Apache-2.0
#include "policy/auto.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "support/policy_tier.h"
#include "support/traces.h"

namespace modcache::policy {
namespace {

using testing::Eviction;
using testing::PolicyTier;
using testing::Trace;

constexpr std::size_t kAutoRoom = 400;

class AutoTest : public ::testing::Test {
 protected:
  double hit_rate(const Trace& trace) { return tier_.hit_rate(trace); }

  std::unique_ptr<AutoState> state_ = std::make_unique<AutoState>();
  Auto auto_{state_.get()};
  PolicyTier tier_{auto_, kAutoRoom};
};

// --- Hit rates with room for 10, 50 and 90 % of 5,000 entries -----------------------------------

constexpr std::uint32_t kEntries = 5000;

Trace phases(bool is_shuffled) {
  Trace trace;
  testing::Random random(6);
  for (std::uint32_t phase = 0; phase < 3; ++phase) {
    const testing::Samples samples{phase * kEntries, kEntries};
    for (int epoch = 0; epoch < 5; ++epoch) {
      is_shuffled ? testing::add_shuffled_epoch(samples, random, trace)
                  : testing::add_epoch(samples, trace);
    }
  }
  return trace;
}

// After each 2,000 lookups, 800 keys that never come again.
Trace scans_over(const Trace& usual) {
  Trace trace;
  std::uint32_t next_of_scan = 10 * kEntries;
  for (std::size_t i = 0; i < usual.size(); ++i) {
    trace.push_back(usual[i]);
    if (i % 2000 != 1999) continue;
    testing::add_epoch({next_of_scan, 800}, trace);
    next_of_scan += 800;
  }
  return trace;
}

// Thirty epochs over an older dataset, which fill the tier, and then ten over another one. Only the
// last five count.
Trace older_project() { return testing::shuffled_epochs({0, kEntries}, 30, 9); }
Trace new_project() { return testing::shuffled_epochs({kEntries, kEntries}, 10, 10); }

struct Rates {
  std::string name;
  Trace trace;
  std::array<double, 3> at_least;  // with room for 10, 50, 90 %
};

std::ostream& operator<<(std::ostream& stream, const Rates& rates) { return stream << rates.name; }

class AutoRatesTest : public ::testing::TestWithParam<Rates> {};

TEST_P(AutoRatesTest, AreNotBelowTheBoundsInMemoryAndStore) {
  const Rates& rates = GetParam();
  for (const Eviction eviction : {Eviction::kSampled, Eviction::kRanked}) {
    std::printf("%-20s %s", rates.name.c_str(),
                eviction == Eviction::kSampled ? "memory" : "store ");
    for (std::size_t i = 0; i < 3; ++i) {
      const std::size_t room = std::array{kEntries / 10, kEntries / 2, kEntries * 9 / 10}[i];
      const auto policy = make_policy(Kind::kAuto);
      const double rate = PolicyTier(*policy, room, eviction).hit_rate(rates.trace);
      std::printf(" %.3f", rate);
      EXPECT_GE(rate, rates.at_least[i]) << "room for " << room;
    }
    std::printf("\n");
  }
}

INSTANTIATE_TEST_SUITE_P(
    Traces, AutoRatesTest,
    ::testing::Values(
        Rates{"cyclic", testing::sequential_epochs({0, kEntries}, 10), {0.085, 0.440, 0.800}},
        Rates{"shuffled", testing::shuffled_epochs({0, kEntries}, 10, 7), {0.060, 0.415, 0.772}},
        Rates{"Zipf", testing::zipf({0, kEntries}, 0.9, 3 * kEntries, 3), {0.584, 0.740, 0.755}},
        Rates{"scans over Zipf",
              scans_over(testing::zipf({0, kEntries}, 0.9, 3 * kEntries, 3)),
              {0.405, 0.495, 0.520}},
        Rates{"phases", phases(false), {0.040, 0.300, 0.550}},
        Rates{"phases, shuffled", phases(true), {0.040, 0.250, 0.440}}),
    [](const auto& tested) {
      std::string name;
      for (const char c : tested.param.name) {
        if (std::isalnum(static_cast<unsigned char>(c)) != 0) name += c;
      }
      return name;
    });

TEST(AutoOlderProjectTest, EntriesOfAnOlderProjectGiveWay) {
  for (const std::size_t room : {kEntries / 10, kEntries / 2, kEntries * 9 / 10}) {
    const double all = 0.9 * static_cast<double>(room) / kEntries;
    for (const Eviction eviction : {Eviction::kSampled, Eviction::kRanked}) {
      const auto policy = make_policy(Kind::kAuto);
      PolicyTier tier(*policy, room, eviction);
      tier.hit_rate(older_project());
      tier.hit_rate(new_project());
      EXPECT_GE(tier.hit_rate(new_project()), all - 0.03) << room;
    }
  }
}

// A sketch that is far too small knows no new key twice.
TEST(AutoOlderProjectTest, ALargeTierIsEmptiedOfAnOlderProjectToo) {
  auto state = std::make_unique<AutoState>();
  Auto policy(state.get());
  policy.set_capacity(1000);
  const Usage old = policy.used(policy.inserted(1, 0), 1000);
  const auto patience = static_cast<Tick>(1000 * Auto::kMaxPatience);
  EXPECT_FALSE(policy.may_replace(old, 2, 1000 + patience / 2));
  EXPECT_TRUE(policy.may_replace(old, 2, 1001 + patience));
}

// --- The rule -----------------------------------------------------------------------------------

TEST_F(AutoTest, ANewKeyReplacesAnEntryOnlyIfItCameMoreOftenByTwo) {
  auto_.set_capacity(kAutoRoom);
  const Usage victim = auto_.used(auto_.inserted(1, 1), 2);  // was used twice
  for (Tick now = 3; now < 6; ++now) {
    auto_.saw(2, /*was_found=*/false);
    EXPECT_FALSE(auto_.may_replace(victim, 2, now));
  }
  auto_.saw(2, /*was_found=*/false);
  EXPECT_TRUE(auto_.may_replace(victim, 2, 7));
}

TEST_F(AutoTest, RarelyUsedEntriesAreEvictedFirstAndThenTheOldest) {
  const Usage once = auto_.inserted(1, 10);
  const Usage later = auto_.inserted(2, 11);
  const Usage twice = auto_.used(auto_.inserted(3, 1), 2);
  EXPECT_LT(auto_.rank(once, 12), auto_.rank(later, 12));
  EXPECT_LT(auto_.rank(later, 12), auto_.rank(twice, 12));
}

TEST_F(AutoTest, AnEvictedEntryKeepsItsCount) {
  Usage usage = auto_.inserted(1, 1);
  for (Tick now = 2; now < 6; ++now) usage = auto_.used(usage, now);
  auto_.evicted(1, usage);
  EXPECT_EQ(auto_.inserted(1, 7).count, 5);
}

TEST_F(AutoTest, CountsAreHalvedEveryTenTimesCapacityLookups) {
  auto_.set_capacity(10);
  for (int i = 0; i < 8; ++i) auto_.saw(1, /*was_found=*/false);
  const Usage eight = auto_.inserted(1, 50);
  EXPECT_EQ(eight.count, 8);
  EXPECT_EQ(auto_.inserted(1, 99).count, 8);
  EXPECT_EQ(auto_.inserted(1, 100).count, 4);
  EXPECT_EQ(auto_.used(eight, 101).count, 5);
  EXPECT_EQ(auto_.inserted(1, 250).count, 2) << "the next period has begun at 200";
}

TEST_F(AutoTest, FollowsASetThatMovesOn) {
  EXPECT_GE(hit_rate(testing::moving_set(kAutoRoom)), 0.75);
}

// One of eight processes, each of which gets other samples in each epoch.
TEST_F(AutoTest, KeepsAStablePartOfSharesOfShuffledEpochs) {
  const auto whole = testing::shuffled_epochs({0, 2 * kAutoRoom}, 80, 1);
  Trace share;
  for (std::size_t i = 0; i < whole.size(); i += 8) share.push_back(whole[i]);
  EXPECT_GE(hit_rate(share), 0.38);
}

// Each new entry is written to disk.
TEST_F(AutoTest, WritesLittleOnEpochs) {
  hit_rate(testing::shuffled_epochs({0, 2 * kAutoRoom}, 10, 1));
  EXPECT_LE(tier_.insertions(), 2 * kAutoRoom);
}

// --- Shared state -------------------------------------------------------------------------------

TEST_F(AutoTest, ProcessesShareWhatTheySaw) {
  Auto other(state_.get());
  for (int i = 0; i < 3; ++i) auto_.saw(1, /*was_found=*/false);
  EXPECT_EQ(other.inserted(1, 1).count, 3);
}

TEST_F(AutoTest, WorksOnAnyBytes) {
  for (std::uint64_t seed = 1; seed < 5; ++seed) {
    testing::Random random(seed);
    auto* const bytes = reinterpret_cast<unsigned char*>(state_.get());
    for (std::size_t i = 0; i < sizeof(AutoState); ++i) {
      bytes[i] = static_cast<unsigned char>(random.next());
    }
    Auto damaged(state_.get());
    PolicyTier tier(damaged, kAutoRoom);
    tier.hit_rate(testing::sequential_epochs({0, 2 * kAutoRoom}, 40));
    EXPECT_GE(tier.hit_rate(testing::sequential_epochs({0, 2 * kAutoRoom}, 10)), 0.40) << seed;
  }
}

TEST_F(AutoTest, SeveralThreadsMayUseOneState) {
  std::vector<std::thread> threads;
  std::array<double, 4> rates{};
  for (std::size_t i = 0; i < rates.size(); ++i) {
    threads.emplace_back([this, &rates, i] {
      Auto mine(state_.get());
      PolicyTier tier(mine, kAutoRoom);
      rates[i] = tier.hit_rate(testing::shuffled_epochs({0, 2 * kAutoRoom}, 10, i));
    });
  }
  for (auto& thread : threads) thread.join();
  for (const double rate : rates) EXPECT_GE(rate, 0.22);
}

TEST(AutoSharedStateTest, LiesInGivenMemoryAndOutlivesThePolicy) {
  struct alignas(64) Memory {
    std::byte bytes[kSharedStateBytes] = {};
  };
  const auto memory = std::make_unique<Memory>();
  const auto trace = testing::zipf({0, 10 * kAutoRoom}, 1.0, 50 * kAutoRoom, 1);
  for (const Kind kind : {Kind::kAuto, Kind::kLru, Kind::kKeep, Kind::kAuto}) {
    const auto policy = make_policy(kind, memory.get());
    EXPECT_GE(PolicyTier(*policy, kAutoRoom).hit_rate(trace), 0.55) << kind_name(kind);
  }
}

}  // namespace
}  // namespace modcache::policy
