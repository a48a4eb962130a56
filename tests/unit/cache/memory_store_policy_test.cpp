// SPDX-License-Identifier: Apache-2.0
//
// Which entries a full memory tier keeps, by policy.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cache/memory_store.h"
#include "support/cache_fixture.h"
#include "support/tier_of_samples.h"

namespace modcache::cache {
namespace {

using policy::Kind;
using testing::TierOfSamples;
using testing::Trace;

constexpr std::size_t kRoom = 500;
constexpr Kind kKinds[] = {Kind::kAuto, Kind::kLru, Kind::kKeep};

double found_by(Kind kind, const Trace& trace) {
  return TierOfSamples(kind, kRoom).found_of(trace);
}

TEST(MemoryStorePolicyTest, auto_finds_four_of_ten_on_epochs_over_twice_the_room) {
  EXPECT_GE(found_by(Kind::kAuto, testing::sequential_epochs({0, 2 * kRoom}, 10)), 0.42);
  EXPECT_GE(found_by(Kind::kAuto, testing::shuffled_epochs({0, 2 * kRoom}, 10, 1)), 0.42);
}

TEST(MemoryStorePolicyTest, auto_does_so_in_batches_too) {
  const auto trace = testing::shuffled_epochs({0, 2 * kRoom}, 10, 1);
  EXPECT_GE(TierOfSamples(Kind::kAuto, kRoom).found_in_batches(trace, 32), 0.42);
}

TEST(MemoryStorePolicyTest, auto_finds_more_than_lru_where_some_are_asked_for_more_often) {
  const auto trace = testing::zipf({0, 10 * kRoom}, 1.0, 100 * kRoom, 3);
  EXPECT_GE(found_by(Kind::kAuto, trace), found_by(Kind::kLru, trace) + 0.03);
}

TEST(MemoryStorePolicyTest, scans_do_not_push_out_what_is_asked_for_often) {
  const auto trace = testing::zipf_with_scans(10 * kRoom);
  EXPECT_GE(found_by(Kind::kAuto, trace), found_by(Kind::kLru, trace) + 0.03);
}

TEST(MemoryStorePolicyTest, auto_follows_a_set_that_changes) {
  EXPECT_GE(found_by(Kind::kAuto, testing::moving_set(kRoom)), 0.85);
  EXPECT_GE(found_by(Kind::kAuto, testing::phases(2 * kRoom, false)), 0.33);
  EXPECT_GE(found_by(Kind::kAuto, testing::phases(2 * kRoom, true)), 0.31);
}

// The first victim would give way, the second would not.
TEST(MemoryStorePolicyTest, an_entry_that_may_not_replace_all_victims_evicts_none) {
  constexpr std::uint32_t kSamples = 10;
  TierOfSamples samples(Kind::kAuto, kSamples);
  for (std::uint32_t sample = 0; sample < kSamples; ++sample) samples.find_or_put(sample);
  for (int i = 0; i < 6; ++i) {
    for (std::uint32_t sample = 1; sample < kSamples; ++sample) samples.find_or_put(sample);
  }
  const std::string key = testing::key_of(kSamples);
  const Digest128 address = samples.address_of(kSamples);
  const auto put = [&](std::size_t size_bytes) {
    return samples.tier().put(address, samples.context(), key,
                              {testing::text_entry(std::string(size_bytes, 'x')), 1, 0});
  };
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(samples.tier().get({*samples.context(), key, address}).entry, nullptr);
  }
  EXPECT_FALSE(put(600));
  EXPECT_EQ(samples.evicted(), 0);
  for (std::uint32_t sample = 0; sample < kSamples; ++sample) EXPECT_TRUE(samples.has(sample));
  EXPECT_TRUE(put(1));
  EXPECT_EQ(samples.evicted(), 1);
  EXPECT_FALSE(samples.has(0));
}

TEST(MemoryStorePolicyTest, keep_keeps_what_came_first) {
  TierOfSamples samples(Kind::kKeep, kRoom);
  samples.found_of(testing::sequential_epochs({0, 2 * kRoom}, 3));
  EXPECT_EQ(samples.evicted(), 0);
  for (std::uint32_t sample = 0; sample < 2 * kRoom; ++sample) {
    EXPECT_EQ(samples.has(sample), sample < kRoom);
  }
}

TEST(MemoryStorePolicyTest, what_is_too_old_leaves_whoever_comes_and_nothing_else_under_keep) {
  TierOfSamples samples(Kind::kKeep, kRoom);
  samples.tier().set_max_age(3600);
  const EntryPtr young = testing::text_entry("value");
  Entry old = *young;
  old.stored_at_us -= 2 * std::int64_t{3'600'000'000};
  for (std::uint32_t sample = 0; sample < kRoom; ++sample) {
    const EntryPtr entry = sample < 10 ? std::make_shared<const Entry>(old) : young;
    const std::string key = testing::key_of(sample);
    EXPECT_TRUE(
        samples.tier().put(samples.address_of(sample), samples.context(), key, {entry, 1, 0}));
  }
  for (std::uint32_t sample = kRoom; sample < kRoom + 20; ++sample) samples.find_or_put(sample);
  for (std::uint32_t sample = 0; sample < kRoom + 20; ++sample) {
    EXPECT_EQ(samples.has(sample), sample >= 10 && sample < kRoom + 10) << sample;
  }
  EXPECT_EQ(samples.evicted(), 10);
}

TEST(MemoryStorePolicyTest, whatever_fits_stays) {
  const auto trace = testing::shuffled_epochs({0, kRoom}, 4, 1);
  for (const Kind kind : kKinds) {
    TierOfSamples samples(kind, kRoom);
    EXPECT_DOUBLE_EQ(samples.found_of(trace), 0.75) << kind_name(kind);
    EXPECT_EQ(samples.evicted(), 0) << kind_name(kind);
  }
}

// As the ranks of a training run do: each gets another share of the samples in each epoch.
TEST(MemoryStorePolicyTest, auto_keeps_a_stable_part_in_each_of_several_processes) {
  const auto whole = testing::shuffled_epochs({0, 4 * kRoom}, 40, 1);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    Trace share;
    for (std::size_t i = rank; i < whole.size(); i += 4) share.push_back(whole[i]);
    // A fourth of the samples fits: that is what can be found once the tier is full.
    EXPECT_GE(found_by(Kind::kAuto, share), 0.21);
  }
}

// The last trace has four epochs because auto learns the frequency of new keys over several epochs.
TEST(MemoryStorePolicyTest, threads_share_what_a_tier_knows) {
  TierOfSamples samples(Kind::kAuto, kRoom);
  std::vector<std::thread> threads;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&samples, seed] {
      samples.found_of(testing::shuffled_epochs({0, 2 * kRoom}, 4, seed));
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_GE(samples.found_of(testing::shuffled_epochs({0, 2 * kRoom}, 4, 9)), 0.40);
}

TEST(MemoryStorePolicyTest, another_policy_takes_over_the_entries_and_their_use) {
  TierOfSamples samples(Kind::kLru, kRoom);
  for (std::uint32_t sample = 0; sample < kRoom; ++sample) samples.find_or_put(sample);
  for (const Kind kind : kKinds) {
    samples.tier().set_policy(kind);
    EXPECT_EQ(samples.tier().entries(), static_cast<std::int64_t>(kRoom));
  }
  samples.tier().set_policy(Kind::kLru);
  for (std::uint32_t sample = 0; sample < kRoom / 2; ++sample) samples.find_or_put(sample);
  for (std::uint32_t sample = 1000; sample < 1000 + kRoom / 4; ++sample)
    samples.find_or_put(sample);
  std::size_t kept = 0;
  for (std::uint32_t sample = 0; sample < kRoom / 2; ++sample) kept += samples.has(sample) ? 1 : 0;
  EXPECT_GE(kept, kRoom / 2 - 10) << "used after the change, or before it: both count";
}

TEST(MemoryStorePolicyTest, a_budget_that_shrinks_to_nothing_and_grows_again_holds) {
  for (const Kind kind : kKinds) {
    TierOfSamples samples(kind, kRoom);
    const auto trace = testing::shuffled_epochs({0, 2 * kRoom}, 2, 1);
    samples.found_of(trace);
    const auto full_bytes = static_cast<std::uint64_t>(samples.tier().size_bytes());
    for (const std::uint64_t budget : {full_bytes / 3, std::uint64_t{0}, full_bytes}) {
      samples.tier().set_budget(budget);
      EXPECT_LE(samples.tier().size_bytes(), static_cast<std::int64_t>(budget));
      samples.found_of(trace);
      EXPECT_LE(samples.tier().size_bytes(), static_cast<std::int64_t>(budget));
    }
    EXPECT_EQ(samples.tier().entries(), static_cast<std::int64_t>(kRoom)) << kind_name(kind);
  }
}

// With many entries it looks at a few of them at a time, and those of one load are not among them.
TEST(MemoryStorePolicyTest, what_one_load_brings_ahead_does_not_push_out_itself) {
  for (const Kind kind : kKinds) {
    TierOfSamples samples(kind, kRoom);
    for (std::uint32_t sample = 0; sample < kRoom; ++sample) samples.find_or_put(sample);
    const auto bring = [&](std::uint32_t sample, std::uint64_t load) {
      return samples.tier().put_ahead(samples.address_of(sample), samples.context(),
                                      testing::key_of(sample), {testing::text_entry("value"), 1, 0},
                                      load);
    };
    for (std::uint32_t sample = 1000; sample < 1000 + kRoom; ++sample) {
      ASSERT_TRUE(bring(sample, 1)) << kind_name(kind);
    }
    for (std::uint32_t sample = 1000; sample < 1000 + kRoom; ++sample) {
      ASSERT_TRUE(samples.has(sample)) << kind_name(kind);
    }
    EXPECT_FALSE(bring(2000, 1)) << "only its own are left to leave";
    EXPECT_FALSE(bring(2000, MemoryStore::kFreeRoomOnly));
    EXPECT_TRUE(bring(2000, 2));
    EXPECT_TRUE(samples.has(2000)) << kind_name(kind);
    EXPECT_EQ(samples.tier().entries(), static_cast<std::int64_t>(kRoom));
  }
}

TEST(MemoryStorePolicyTest, of_what_was_brought_ahead_the_one_not_asked_for_leaves) {
  for (const Kind kind : {Kind::kAuto, Kind::kLru}) {
    TierOfSamples samples(kind, 2);
    for (std::uint32_t sample = 0; sample < 3; ++sample) {
      samples.tier().put_ahead(samples.address_of(sample), samples.context(),
                               testing::key_of(sample), {testing::text_entry("value"), 1, 0},
                               sample + 1);
      EXPECT_TRUE(samples.find_or_put(0)) << kind_name(kind);
    }
    EXPECT_TRUE(samples.has(2)) << kind_name(kind);
    EXPECT_FALSE(samples.has(1)) << kind_name(kind);
  }
}

TEST(MemoryStorePolicyTest, room_for_a_load_is_what_it_did_not_bring_itself) {
  TierOfSamples samples(Kind::kLru, kRoom);
  for (std::uint32_t sample = 0; sample < kRoom; ++sample) samples.find_or_put(sample);
  EXPECT_TRUE(samples.tier().has_room(5, 1));
  EXPECT_FALSE(samples.tier().has_room(5, MemoryStore::kFreeRoomOnly));
  for (std::uint32_t sample = 1000; sample < 1000 + kRoom; ++sample) {
    samples.tier().put_ahead(samples.address_of(sample), samples.context(), testing::key_of(sample),
                             {testing::text_entry("value"), 1, 0}, 1);
  }
  EXPECT_FALSE(samples.tier().has_room(5, 1));
  EXPECT_TRUE(samples.tier().has_room(5, 2));
  const std::string key = testing::key_of(1000);
  samples.tier().settle_all({{{*samples.context(), key}}}, 0);
  EXPECT_TRUE(samples.tier().has_room(5, 1));
}

// What lies on disk comes into memory when it is found there; epochs find a stable part in memory.
TEST(MemoryStorePolicyTest, epochs_over_a_directory_find_a_stable_part_in_memory) {
  const testing::TemporaryDirectory directory;
  testing::Process process(directory / "cache");
  const auto address = [](std::uint32_t sample) {
    return "sample " + std::to_string(10000 + sample);
  };
  for (std::uint32_t sample = 0; sample < 600; ++sample) process.store(address(sample), "value");
  const std::int64_t half = process.stat("bytes_memory") / 2;
  ASSERT_TRUE(process.configure({{"memory", std::to_string(half)}}).is_ok());
  process.cache().clear({}, Cache::Tier::kMemory);
  process.cache().reset_stats();
  for (int epoch = 0; epoch < 6; ++epoch) {
    for (std::uint32_t sample = 0; sample < 600; ++sample) process.lookup(address(sample));
  }
  EXPECT_EQ(process.stat("misses"), 0);
  EXPECT_GE(process.stat("hits_memory"), 600 * 6 * 38 / 100);
}

}  // namespace
}  // namespace modcache::cache
