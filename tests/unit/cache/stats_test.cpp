// SPDX-License-Identifier: Apache-2.0
#include "cache/stats.h"

#include <gmock/gmock.h>

#include <string>
#include <thread>
#include <vector>

namespace modcache::cache {
namespace {

std::vector<Counter> all_counters() {
  std::vector<Counter> counters;
  for (std::size_t i = 0; i < static_cast<std::size_t>(Counter::kCount); ++i) {
    counters.push_back(static_cast<Counter>(i));
  }
  return counters;
}

TEST(StatsTest, has_every_counter_that_is_promised_under_its_name) {
  std::vector<std::string> names;
  for (const Counter counter : all_counters()) names.emplace_back(counter_name(counter));
  EXPECT_THAT(names,
              ::testing::UnorderedElementsAre(
                  "hits_memory", "hits_disk", "hits_remote", "misses", "stored", "bypassed_off",
                  "bypassed_grad", "bypassed_impure", "bypassed_type", "key_conflicts",
                  "verify_differences", "evicted", "not_kept", "corrupt", "errors", "run_us",
                  "saved_us", "bypassed_verify", "verified", "hit_bytes", "stored_bytes",
                  "remote_stored", "remote_dropped", "bypassed_rows", "bypassed_identity"));
}

TEST(StatsTest, counts_each_counter_by_itself_until_all_are_reset) {
  Stats stats;
  std::int64_t amount = 0;
  for (const Counter counter : all_counters()) stats.add(counter, ++amount);
  amount = 0;
  for (const Counter counter : all_counters()) EXPECT_EQ(stats.get(counter), ++amount);
  stats.reset();
  for (const Counter counter : all_counters()) EXPECT_EQ(stats.get(counter), 0);
}

TEST(StatsTest, loses_no_count_between_threads) {
  Stats stats;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10'000; ++i) stats.add(Counter::kMisses);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(stats.get(Counter::kMisses), 40'000);
}

}  // namespace
}  // namespace modcache::cache
