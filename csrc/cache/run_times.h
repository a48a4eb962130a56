// SPDX-License-Identifier: Apache-2.0
//
// RunTimes: how long the runs of a scope usually take, which bounds how long a thread waits for
// another one's run. Thread-safe without a lock; usable in a forked child.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string_view>

#include "cache/scope_table.h"
#include "cache/single_flight.h"

namespace modcache::cache {

class RunTimes {
 public:
  // A run of twenty times the usual length is not waited for, as it may be one that hangs. Short
  // runs are waited for long enough that a busy machine makes no difference; and of a scope without
  // a run so far the first one may have to load or to compile.
  static constexpr int kTimesUsual = 20;
  static constexpr std::chrono::seconds kShortestPatience{1};
  static constexpr std::chrono::seconds kLongestPatience{30};
  // Were a wait no longer than that, all waiters would give up in the moment that lets one run.
  static_assert(SingleFlight::kLongestWait >= 16 * kLongestPatience);

  void note(std::string_view scope, std::int64_t run_us);
  // How long to wait for a run of this scope before another thread runs beside it.
  std::chrono::microseconds patience(std::string_view scope);

 private:
  struct Usual {
    std::atomic<std::int64_t> run_us{0};  // 0: not known
  };
  ScopeTable<Usual> scopes_;
};

}  // namespace modcache::cache
