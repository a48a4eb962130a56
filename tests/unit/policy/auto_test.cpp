// SPDX-License-Identifier: Apache-2.0
#include "policy/auto.h"

#include <gtest/gtest.h>

#include <array>
#include <cctype>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
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
  // Returns how many of 1,000 new keys may replace the entry.
  int new_keys_that_replace(Usage usage, Tick now) {
    int count = 0;
    for (std::uint32_t key = 0; key < 1000; ++key) {
      count += auto_.may_replace(usage, testing::hash_of(key), now) ? 1 : 0;
    }
    return count;
  }

  std::unique_ptr<AutoState> state_ = std::make_unique<AutoState>();
  Auto auto_{state_.get()};
  PolicyTier tier_{auto_, kAutoRoom};
};

// --- Hit rates with room for 10, 50 and 90 % of 5,000 entries -----------------------------------

constexpr std::uint32_t kEntries = 5000;

struct Rates {
  std::string trace;               // of traces_of()
  std::array<double, 3> at_least;  // with room for 10, 50, 90 %
};

std::ostream& operator<<(std::ostream& stream, const Rates& rates) { return stream << rates.trace; }

testing::NamedTrace trace_of(const std::string& name, std::size_t room) {
  for (auto& named : testing::traces_of(kEntries, room)) {
    if (named.name == name) return std::move(named);
  }
  return {};
}

class AutoRatesTest : public ::testing::TestWithParam<Rates> {};

TEST_P(AutoRatesTest, AreNotBelowTheBoundsInMemoryAndStore) {
  const Rates& rates = GetParam();
  for (const Eviction eviction : {Eviction::kSampled, Eviction::kRanked}) {
    for (std::size_t i = 0; i < 3; ++i) {
      const std::size_t room = std::array{kEntries / 10, kEntries / 2, kEntries * 9 / 10}[i];
      const auto named = trace_of(rates.trace, room);
      const auto counted_from =
          named.trace.begin() + static_cast<std::ptrdiff_t>(named.counted_from);
      const auto policy = make_policy(Kind::kAuto);
      PolicyTier tier(*policy, room, eviction);
      tier.hit_rate({named.trace.begin(), counted_from});
      EXPECT_GE(tier.hit_rate({counted_from, named.trace.end()}), rates.at_least[i])
          << "room for " << room << (eviction == Eviction::kSampled ? " in memory" : " in a store");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Traces, AutoRatesTest,
                         ::testing::Values(Rates{"cyclic", {0.088, 0.445, 0.805}},
                                           Rates{"shuffled epochs", {0.086, 0.435, 0.795}},
                                           Rates{"Zipf", {0.580, 0.767, 0.780}},
                                           Rates{"Zipf with scans", {0.409, 0.527, 0.544}},
                                           Rates{"phases", {0.071, 0.331, 0.588}},
                                           Rates{"phases, shuffled", {0.059, 0.317, 0.543}},
                                           Rates{"after another project", {0.074, 0.380, 0.672}},
                                           Rates{"moving working set", {0.850, 0.850, 0.850}}),
                         [](const auto& tested) {
                           std::string name;
                           for (const char c : tested.param.trace) {
                             if (std::isalnum(static_cast<unsigned char>(c)) != 0) name += c;
                           }
                           return name;
                         });

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

// The average age is at first taken for at least twice the capacity.
TEST_F(AutoTest, EntriesNotUsedForLongGiveWayToSomeNewKeys) {
  auto_.set_capacity(100);
  const Usage used = auto_.used(auto_.used(auto_.inserted(1, 0), 10), 20);
  EXPECT_EQ(new_keys_that_replace(used, 120), 0);
  EXPECT_NEAR(new_keys_that_replace(used, 320), 1000 / Auto::kOneIn, 40);
}

TEST_F(AutoTest, EntriesNotUsedForLongGiveWayThoughAgesAreUnknown) {
  auto_.set_capacity(100);
  const Usage unused = auto_.inserted(1, 0);
  const auto patience = static_cast<Tick>(100 * Auto::kMaxPatience);
  EXPECT_EQ(new_keys_that_replace(unused, patience), 0);
  EXPECT_NEAR(new_keys_that_replace(unused, patience + 1), 1000 / Auto::kOneIn, 40);
}

// The key was seen four times before the halving and is seen twice after it.
TEST_F(AutoTest, HalvingDoesNotFavourNewKeysOverEntriesThatAreAsFrequent) {
  auto_.set_capacity(100);
  Usage entry = auto_.inserted(1, 990);
  for (Tick now = 991; now < 995; ++now) entry = auto_.used(entry, now);
  for (int i = 0; i < 4; ++i) auto_.saw(2, /*was_found=*/false);
  EXPECT_FALSE(auto_.may_replace(entry, 2, 1000));
  for (int i = 0; i < 2; ++i) auto_.saw(2, /*was_found=*/false);
  EXPECT_EQ(auto_.inserted(2, 1001).count, 4);
  EXPECT_FALSE(auto_.may_replace(entry, 2, 1002)) << "5 was rounded up to 3";
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
