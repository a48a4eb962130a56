// SPDX-License-Identifier: Apache-2.0
//
// The server's own counters, which GET /metrics shows next to those of the cache.
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

// A histogram of durations. Any thread.
class Histogram {
 public:
  // Upper bounds of the buckets in seconds; one more bucket is for longer durations.
  static constexpr std::array<double, 22> kBounds = {
      1e-6, 2.5e-6, 5e-6,   1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3,
      5e-3, 1e-2,   2.5e-2, 5e-2, 0.1,    0.25, 0.5,  1.0,    2.5,  5.0,  10.0};
  using Counts = std::array<std::uint64_t, kBounds.size() + 1>;

  void add(std::chrono::nanoseconds duration);
  Counts counts() const;
  double sum_s() const { return static_cast<double>(sum_ns_) * 1e-9; }

 private:
  std::array<std::atomic<std::uint64_t>, kBounds.size() + 1> counts_{};
  std::atomic<std::uint64_t> sum_ns_{0};
};

// Measures from its construction to its destruction, also if an exception ends the scope.
class Timer {
 public:
  explicit Timer(Histogram& durations) : durations_(durations) {}
  ~Timer() { durations_.add(std::chrono::steady_clock::now() - start_); }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  Histogram& durations_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Returns an estimate in seconds; 0 for an empty histogram.
double quantile(const Histogram::Counts& counts, double share);

class Metrics {
 public:
  // Counts a response. `route` becomes a label, so it must not be what a client chose.
  void count(const std::string& route, int status);

  Histogram& predict_durations() { return predict_durations_; }
  const Histogram& predict_durations() const { return predict_durations_; }
  // Returns the responses to POST /predict: all ("requests"), 4xx ("refused") and 5xx ("failed").
  std::map<std::string, std::int64_t> predict_counters() const;
  // Returns all of them in Prometheus' text format. Names begin with server_.
  std::string text() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, std::int64_t> responses_;  // by route and status
  Histogram predict_durations_;
};

}  // namespace server
