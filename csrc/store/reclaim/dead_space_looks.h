// SPDX-License-Identifier: Apache-2.0
//
// DeadSpaceLooks: when a full directory that lets nobody in is worth another look for space that
// nothing leads to: when something was removed since the last look, and now and then where entries
// become too old. Thread-safe.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace modcache::store {

class DeadSpaceLooks {
 public:
  // 0: entries never become too old.
  explicit DeadSpaceLooks(std::int64_t max_age_us) : period_ms_(period_ms(max_age_us)) {}

  // True: the caller looks now. `removals` of the control page; `now_ms` only grows.
  bool is_due(std::uint64_t removals, std::int64_t now_ms) {
    const bool is_changed = removals_and_one_.exchange(removals + 1) != removals + 1;
    std::int64_t next_ms = next_ms_;
    const bool is_time = period_ms_ > 0 && now_ms >= next_ms;
    if (!is_changed && !is_time) return false;
    // If several threads come at the same time, one of them looks.
    return next_ms_.compare_exchange_strong(next_ms, now_ms + period_ms_) || is_changed;
  }

 private:
  static constexpr std::int64_t kLooksPerAge = 16;
  static constexpr std::int64_t kLeastPeriodMs = 1000;

  static std::int64_t period_ms(std::int64_t max_age_us) {
    if (max_age_us <= 0) return 0;
    return std::max(kLeastPeriodMs, max_age_us / 1000 / kLooksPerAge);
  }

  const std::int64_t period_ms_;
  std::atomic<std::uint64_t> removals_and_one_{0};  // 0: nobody has looked yet
  std::atomic<std::int64_t> next_ms_{0};
};

}  // namespace modcache::store
