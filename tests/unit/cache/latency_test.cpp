// SPDX-License-Identifier: Apache-2.0
#include "cache/latency.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>

namespace modcache::cache {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

TEST(LatencyTest, an_observation_counts_in_the_bucket_whose_bound_it_does_not_exceed) {
  LatencyHistogram histogram;
  histogram.observe(nanoseconds(0));
  histogram.observe(microseconds(1));
  histogram.observe(nanoseconds(1'001));
  histogram.observe(std::chrono::hours(1));
  const auto taken = histogram.snapshot();
  EXPECT_EQ(taken.counts[0], 2);
  EXPECT_EQ(taken.counts[1], 1);
  EXPECT_EQ(taken.counts.back(), 1);
  EXPECT_EQ(taken.sum_ns, 1'000 + 1'001 + 3'600'000'000'000);
}

TEST(LatencyTest, an_observation_stands_for_as_many_as_its_weight) {
  LatencyHistogram histogram;
  histogram.observe(microseconds(2), 16);
  EXPECT_EQ(histogram.snapshot().counts[1], 16);
  EXPECT_EQ(histogram.snapshot().sum_ns, 32'000);
}

TEST(LatencyTest, of_many_hits_of_a_thread_all_are_counted_and_one_in_sixteen_is_timed) {
  Latencies latencies;
  for (int i = 0; i < 1'600; ++i) HitTimer().note_hit(latencies);
  const auto counts = latencies.hit.snapshot().counts;
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}), 1'600);
}

}  // namespace
}  // namespace modcache::cache
