// SPDX-License-Identifier: Apache-2.0
//
// The last ten minutes, second by second, for the status page. All is bounded.
//
// The bytes of each scope are asked of the directory, which takes about a second for each million
// of entries. So that is done only while somebody looks at the page, at most a twentieth of the
// time, and in a thread of its own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>

#include "metrics.h"

namespace server {

class History {
 public:
  // Samples in threads of its own. REQUIRES: `metrics` outlives it.
  explicit History(const Metrics& metrics);
  ~History();
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  // Returns the samples whose numbers are higher than `after` (all of them where `started_s` is not
  // this process's, as they are numbers of another), the totals of the process, and the bytes of
  // each scope in the directory, as they were lately; their number is null where nobody looked yet.
  // Any thread.
  nlohmann::json status(std::int64_t after, double started_s);

 private:
  struct Totals {
    std::map<std::string, std::int64_t> stats;  // of the cache
    Metrics::Answers answers;
    Histogram::Counts durations{};
  };
  using Scopes = std::map<std::string, std::int64_t>;

  Totals look() const;
  // Durations as they stood at a sample.
  struct Stand {
    std::chrono::steady_clock::time_point at;
    Histogram::Counts durations;
  };

  void run();
  void add_sample();
  void look_at_scopes_when_asked();
  void ask_for_scopes(std::unique_lock<std::mutex>& lock);
  void forget_before_last_minute();

  const Metrics& metrics_;
  const double started_s_;  // since 1970
  std::mutex mutex_;
  std::condition_variable wake_;
  bool is_ending_ = false;
  std::deque<nlohmann::json> samples_;  // each an object
  std::deque<Stand> recent_;            // of the last minute; the first one is where it began
  Totals last_;
  std::int64_t next_ = 0;
  std::optional<Scopes> scopes_;
  bool are_scopes_asked_for_ = false;
  std::thread thread_;
  std::thread thread_of_scopes_;
};

}  // namespace server
