// SPDX-License-Identifier: Apache-2.0
#include "cache/latency.h"

#include <algorithm>

namespace modcache::cache {

void LatencyHistogram::observe(std::chrono::nanoseconds duration, std::int64_t weight) {
  const std::int64_t ns = duration.count();
  const auto* const bound = std::lower_bound(kBoundsNs.begin(), kBoundsNs.end(), ns);
  counts_[static_cast<std::size_t>(bound - kBoundsNs.begin())].fetch_add(weight,
                                                                         std::memory_order_relaxed);
  sum_ns_.fetch_add(ns * weight, std::memory_order_relaxed);
}

LatencyHistogram::Snapshot LatencyHistogram::snapshot() const {
  Snapshot taken;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    taken.counts[i] = counts_[i].load(std::memory_order_relaxed);
  }
  taken.sum_ns = sum_ns_.load(std::memory_order_relaxed);
  return taken;
}

std::uint32_t& HitTimer::questions_of_this_thread() {
  thread_local std::uint32_t questions = 0;
  return questions;
}

}  // namespace modcache::cache
