// SPDX-License-Identifier: Apache-2.0
//
// The last ten minutes, second by second, for the status page.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "metrics.h"

namespace server {

class History {
 public:
  // Samples once per second, in a thread of its own. REQUIRES: `metrics` outlives it.
  explicit History(const Metrics& metrics);
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  // Returns the samples since `after_s` (Unix time), the totals, and the bytes of each scope on
  // disk. Any thread.
  nlohmann::json status(double after_s);

 private:
  struct Totals {
    std::map<std::string, std::int64_t> counters;
    Histogram::Counts durations{};
  };
  using Clock = std::chrono::steady_clock;
  using BytesByScope = std::map<std::string, std::int64_t>;
  struct Scan {
    std::optional<BytesByScope> scopes;
    Clock::time_point next;  // earliest time of the next scan
  };

  Totals read_totals() const;
  void run(const std::stop_token& stop);
  void add_sample();
  static Scan scan_scopes();
  void refresh_scopes();

  const Metrics& metrics_;
  const double started_s_;  // Unix time
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::deque<nlohmann::json> samples_;
  Totals last_;
  std::deque<Histogram::Counts> last_minute_;  // durations at each sample, the oldest first
  // The scan reads the whole index, about 1 s per million entries. So it runs in the background,
  // only while the page is open, and at most a twentieth of the time.
  std::optional<BytesByScope> scopes_;  // nullopt: not scanned yet
  std::future<Scan> scan_;
  Clock::time_point next_scan_;
  std::jthread sampler_;  // last, so that it ends first
};

}  // namespace server
