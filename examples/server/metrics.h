// SPDX-License-Identifier: Apache-2.0
//
// The server's own counters, which stand beside those of the cache in GET /metrics.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace server {

// How many of what was measured took how long. Any thread.
class Histogram {
 public:
  // The upper bounds of the buckets in seconds; one more is for what took longer.
  static constexpr std::array<double, 22> kBounds = {
      1e-6, 2.5e-6, 5e-6,   1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3,
      5e-3, 1e-2,   2.5e-2, 5e-2, 0.1,    0.25, 0.5,  1.0,    2.5,  5.0,  10.0};
  using Counts = std::array<std::uint64_t, kBounds.size() + 1>;

  void add(std::chrono::nanoseconds took);
  Counts counts() const;
  double seconds() const { return static_cast<double>(nanoseconds_) * 1e-9; }

 private:
  std::array<std::atomic<std::uint64_t>, kBounds.size() + 1> counts_{};
  std::atomic<std::uint64_t> nanoseconds_{0};
};

// Returns about how long that share of them took at most, in seconds; 0 where there are none.
double quantile(const Histogram::Counts& counts, double share);

struct Connections {
  std::uint64_t accepted = 0;
  std::uint64_t closed = 0;
  std::uint64_t refused = 0;
};

class Metrics {
 public:
  void count(const std::string& route, int status);
  Histogram& predict_durations() { return predict_durations_; }
  const Histogram& predict_durations() const { return predict_durations_; }
  void add_received(std::uint64_t bytes) { received_bytes_ += bytes; }

  // Answers to POST /predict: all, and those that were none (5xx) or were refused (4xx).
  struct Answers {
    std::uint64_t all = 0;
    std::uint64_t failed = 0;
    std::uint64_t refused = 0;
  };
  Answers answers() const;
  // In Prometheus' text format; names begin with server_.
  std::string text(const Connections& connections) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, std::uint64_t> answers_;  // by route and status
  Histogram predict_durations_;
  std::atomic<std::uint64_t> received_bytes_{0};
};

}  // namespace server
