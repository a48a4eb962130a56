// SPDX-License-Identifier: Apache-2.0
//
// Histograms of how long calls take. Any thread may observe; an observation is a few additions.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace modcache::cache {

class LatencyHistogram {
 public:
  // The buckets' upper bounds; a last bucket takes what is longer.
  static constexpr std::array<std::int64_t, 22> kBoundsNs{
      1'000,         2'500,         5'000,         10'000,        25'000,      50'000,
      100'000,       250'000,       500'000,       1'000'000,     2'500'000,   5'000'000,
      10'000'000,    25'000'000,    50'000'000,    100'000'000,   250'000'000, 500'000'000,
      1'000'000'000, 2'500'000'000, 5'000'000'000, 10'000'000'000};

  // `weight`: the number of calls that this one stands for.
  void observe(std::chrono::nanoseconds duration, std::int64_t weight = 1);

  struct Snapshot {
    std::array<std::int64_t, kBoundsNs.size() + 1> counts{};
    std::int64_t sum_ns = 0;
  };
  Snapshot snapshot() const;

 private:
  std::array<std::atomic<std::int64_t>, kBoundsNs.size() + 1> counts_{};
  std::atomic<std::int64_t> sum_ns_{0};
};

struct Latencies {
  LatencyHistogram hit;   // a lookup that found all it asked for, to the value that is handed out
  LatencyHistogram miss;  // a call that ran its module, from its lookup to its end
  LatencyHistogram run;   // the module's own run
};

// Times one of kHitsPerSample hits of a thread, which stands for all of them: to read the clock
// twice would be felt in a hit from memory.
class HitTimer {
 public:
  static constexpr std::uint32_t kHitsPerSample = 16;

  HitTimer() : is_sample_(++questions_of_this_thread() % kHitsPerSample == 0) {
    if (is_sample_) started_ = std::chrono::steady_clock::now();
  }
  // The lookup that began with this object was a hit.
  void note_hit(Latencies& latencies) const {
    if (is_sample_) {
      latencies.hit.observe(std::chrono::steady_clock::now() - started_, kHitsPerSample);
    }
  }

 private:
  static std::uint32_t& questions_of_this_thread();

  const bool is_sample_;
  std::chrono::steady_clock::time_point started_;
};

}  // namespace modcache::cache
