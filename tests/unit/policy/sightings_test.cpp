// SPDX-License-Identifier: Apache-2.0
#include "policy/sightings.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "support/traces.h"

namespace modcache::policy {
namespace {

using testing::hash_of;

// How many of the keys [0, count) are known.
int known(const Sightings& sightings, std::uint32_t count) {
  int found = 0;
  for (std::uint32_t i = 0; i < count; ++i) found += sightings.has(hash_of(i)) ? 1 : 0;
  return found;
}

void note_all(Sightings& sightings, std::uint32_t begin, std::uint32_t end) {
  for (std::uint32_t i = begin; i < end; ++i) sightings.note(hash_of(i));
}

TEST(SightingsTest, a_key_is_known_from_its_second_sight_on) {
  Sightings sightings;
  EXPECT_FALSE(sightings.has(hash_of(1)));
  EXPECT_FALSE(sightings.note(hash_of(1)));
  EXPECT_TRUE(sightings.has(hash_of(1)));
  EXPECT_TRUE(sightings.note(hash_of(1)));
  EXPECT_FALSE(sightings.has(hash_of(2)));
}

TEST(SightingsTest, a_key_whose_bits_are_all_zero_is_as_any_other) {
  Sightings sightings;
  EXPECT_FALSE(sightings.has(0));
  EXPECT_FALSE(sightings.note(0));
  EXPECT_TRUE(sightings.note(0));
}

TEST(SightingsTest, asking_whether_a_key_is_known_does_not_make_it_known) {
  Sightings sightings;
  EXPECT_FALSE(sightings.has(hash_of(1)));
  EXPECT_FALSE(sightings.note(hash_of(1)));
}

TEST(SightingsTest, forgets_all_that_it_is_told_to_forget) {
  Sightings sightings;
  note_all(sightings, 0, 1000);
  sightings.forget();
  EXPECT_EQ(known(sightings, 1000), 0);
}

TEST(SightingsTest, keys_that_never_came_hardly_ever_pass_for_known_ones) {
  Sightings sightings;
  int mistaken = 0;
  for (std::uint32_t i = 0; i < 1'000'000; ++i) mistaken += sightings.note(hash_of(i)) ? 1 : 0;
  EXPECT_LT(mistaken, 200);  // one in 16,384 of a million are 61
}

TEST(SightingsTest, the_keys_of_the_last_hundred_thousand_are_known_and_older_ones_fade) {
  Sightings sightings;
  note_all(sightings, 0, 1000);
  note_all(sightings, 1000, 65'536);
  EXPECT_GT(known(sightings, 1000), 950);
  note_all(sightings, 65'536, 131'072);
  EXPECT_GT(known(sightings, 1000), 800);
  note_all(sightings, 131'072, 1'000'000);
  EXPECT_LT(known(sightings, 1000), 20);
}

TEST(SightingsTest, a_key_that_is_asked_for_now_and_then_stays_known) {
  Sightings sightings;
  sightings.note(hash_of(0));
  for (std::uint32_t i = 1; i < 1'000'000; ++i) {
    sightings.note(hash_of(i));
    if (i % 10'000 == 0) {
      EXPECT_TRUE(sightings.note(hash_of(0))) << i;
    }
  }
}

TEST(SightingsTest, of_threads_that_note_a_key_together_one_is_the_first) {
  Sightings sightings;
  constexpr std::uint32_t kKeys = 1000;
  std::atomic<int> firsts{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (std::uint32_t i = 0; i < kKeys; ++i) firsts += sightings.note(hash_of(i)) ? 0 : 1;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(firsts, static_cast<int>(kKeys));
}

}  // namespace
}  // namespace modcache::policy
