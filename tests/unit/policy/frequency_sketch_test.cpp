// SPDX-License-Identifier: Apache-2.0
#include "policy/frequency_sketch.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "support/traces.h"

namespace modcache::policy {
namespace {

using testing::hash_of;

class FrequencySketchTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kBuckets = 64;

  // `size` keys that fall into one bucket.
  static std::vector<std::uint64_t> keys_of_one_bucket(std::size_t size) {
    std::vector<std::uint64_t> keys;
    for (std::uint64_t i = 1; i <= size; ++i) keys.push_back(i << 52 | 7);
    return keys;
  }

  std::unique_ptr<FrequencySketch::Bucket[]> buckets_ =
      std::make_unique<FrequencySketch::Bucket[]>(kBuckets);
  FrequencySketch sketch_{buckets_.get(), kBuckets};
};

TEST_F(FrequencySketchTest, CountsUpToItsMaximum) {
  EXPECT_EQ(sketch_.count(hash_of(1)), 0u);
  for (std::uint32_t count = 1; count <= 20; ++count) {
    sketch_.add(hash_of(1));
    EXPECT_EQ(sketch_.count(hash_of(1)), std::min(count, FrequencySketch::kMaxCount));
  }
  sketch_.add(hash_of(2), 9);
  EXPECT_EQ(sketch_.count(hash_of(2)), 9u);
  sketch_.add(hash_of(2), 9);
  EXPECT_EQ(sketch_.count(hash_of(2)), 15u);
}

TEST_F(FrequencySketchTest, AFullBucketForgetsTheRarestAndThenTheOldest) {
  const auto keys = keys_of_one_bucket(6);
  for (std::size_t i = 0; i < 4; ++i) sketch_.add(keys[i]);
  sketch_.add(keys[0]);
  sketch_.add(keys[4]);
  EXPECT_EQ(sketch_.count(keys[0]), 2u);
  EXPECT_EQ(sketch_.count(keys[1]), 0u) << "the oldest of those that came once";
  sketch_.add(keys[5]);
  EXPECT_EQ(sketch_.count(keys[2]), 0u);
  for (const std::size_t known : {3, 4, 5}) EXPECT_EQ(sketch_.count(keys[known]), 1u) << known;
}

TEST_F(FrequencySketchTest, AgingHalvesAllCountsAndFreesKeysWithoutOne) {
  const auto keys = keys_of_one_bucket(3);
  sketch_.add(keys[0], 15);
  sketch_.add(keys[1], 2);
  sketch_.add(keys[2], 1);
  sketch_.age(1);
  EXPECT_EQ(sketch_.count(keys[0]), 7u);
  EXPECT_EQ(sketch_.count(keys[1]), 1u);
  EXPECT_EQ(sketch_.count(keys[2]), 0u);
  sketch_.age(4);
  EXPECT_EQ(buckets_[7].load(), 0u);
}

TEST_F(FrequencySketchTest, CountsAreNeverTooLargeWhenThereAreTooManyKeys) {
  for (std::uint32_t key = 0; key < 100'000; ++key) sketch_.add(hash_of(key));
  int inflated = 0;
  for (std::uint32_t key = 0; key < 100'000; ++key) inflated += sketch_.count(hash_of(key)) > 1;
  EXPECT_LE(inflated, 500) << "keys with one tag; each is shared by 0.1 % of a bucket's keys";
}

TEST_F(FrequencySketchTest, WorksOnAnyBytes) {
  testing::Random random(1);
  for (std::size_t i = 0; i < kBuckets; ++i) buckets_[i] = random.next();
  for (std::uint32_t key = 0; key < 1000; ++key) {
    sketch_.add(hash_of(key));
    EXPECT_GE(sketch_.count(hash_of(key)), 1u);
    EXPECT_LE(sketch_.count(hash_of(key)), 15u);
  }
}

TEST(SeenFilterTest, KnowsWhatItSaw) {
  SeenFilter seen;
  EXPECT_FALSE(seen.add(hash_of(1)));
  EXPECT_TRUE(seen.add(hash_of(1)));
  EXPECT_FALSE(seen.add(hash_of(2)));
}

TEST(SeenFilterTest, RemembersMostOfTheLast100000Keys) {
  SeenFilter seen;
  int unknown = 0;
  for (std::uint32_t key = 0; key < 500'000; ++key) unknown += seen.add(hash_of(key)) ? 1 : 0;
  EXPECT_LE(unknown, 500'000 / 500) << "new keys that are taken for known ones";
  int known = 0;
  for (std::uint32_t key = 400'000; key < 500'000; ++key) known += seen.add(hash_of(key)) ? 1 : 0;
  EXPECT_GE(known, 90'000);
}

TEST(SeenFilterTest, FrequentKeysOfThePastDoNotOccupyItForever) {
  SeenFilter seen;
  for (int round = 0; round < 3; ++round) {
    for (std::uint32_t key = 0; key < 400'000; ++key) seen.add(hash_of(key));
  }
  for (std::uint32_t key = 1'000'000; key < 6'000'000; ++key) seen.add(hash_of(key));
  int known = 0;
  for (std::uint32_t key = 5'950'000; key < 6'000'000; ++key)
    known += seen.add(hash_of(key)) ? 1 : 0;
  EXPECT_GE(known, 45'000);
}

TEST(SeenFilterTest, SeveralThreadsMayUseIt) {
  SeenFilter seen;
  std::vector<std::thread> threads;
  for (std::uint32_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&seen, thread] {
      for (std::uint32_t key = 0; key < 10'000; ++key) seen.add(hash_of(10'000 * thread + key));
    });
  }
  for (auto& thread : threads) thread.join();
  int known = 0;
  for (std::uint32_t key = 0; key < 40'000; ++key) known += seen.add(hash_of(key)) ? 1 : 0;
  EXPECT_GE(known, 39'000) << "updates that collide may be lost";
}

}  // namespace
}  // namespace modcache::policy
