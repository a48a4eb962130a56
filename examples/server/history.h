// SPDX-License-Identifier: Apache-2.0
//
// What happened in the last ten minutes, second by second, for the status page. All is bounded.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "metrics.h"

namespace server {

class History {
 public:
  // Samples in a thread of its own. REQUIRES: `metrics` outlives it.
  explicit History(const Metrics& metrics);
  ~History();
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  // Returns the samples whose numbers are higher than `after` (all of them where `started_s` is not
  // this process's, as they are numbers of another), the totals of the process, and the bytes of
  // each scope in the directory. Any thread.
  nlohmann::json status(std::int64_t after, double started_s) const;

 private:
  struct Totals {
    std::map<std::string, std::int64_t> stats;  // of the cache
    Metrics::Answers answers;
    Histogram::Counts durations{};
  };
  using Scopes = std::map<std::string, std::int64_t>;

  Totals look() const;
  void run();
  void add_sample();

  const Metrics& metrics_;
  const double started_s_;  // since 1970
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool is_ending_ = false;
  std::deque<nlohmann::json> samples_;              // each an object
  std::deque<Histogram::Counts> recent_durations_;  // durations as they stood at the last samples
  Totals last_;
  std::int64_t next_ = 0;
  Scopes scopes_;
  std::thread thread_;
};

}  // namespace server
