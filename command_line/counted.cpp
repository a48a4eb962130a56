// SPDX-License-Identifier: Apache-2.0
#include "command_line/counted.h"

#include <algorithm>
#include <cstdlib>

#include "command_line/units.h"

namespace modcache::command_line {
namespace {

constexpr std::size_t kCounters = static_cast<std::size_t>(cache::Counter::kCount);
constexpr std::int64_t kDayUs = 86'400'000'000;
constexpr std::int64_t kMostCount = std::int64_t{1} << 58;

std::vector<std::size_t> counters_that_begin(std::string_view beginning) {
  std::vector<std::size_t> counters;
  for (std::size_t i = 0; i < kCounters; ++i) {
    const std::string_view name = cache::counter_name(static_cast<cache::Counter>(i));
    if (name.substr(0, beginning.size()) == beginning) counters.push_back(i);
  }
  return counters;
}

}  // namespace

std::int64_t Counted::at(std::size_t counter) const {
  return std::clamp<std::int64_t>(counts_[counter], 0, kMostCount);
}

std::int64_t Counted::of_all(const std::vector<std::size_t>& counters) const {
  std::int64_t sum = 0;
  for (const std::size_t counter : counters) sum += at(counter);
  return sum;
}

std::int64_t Counted::of(std::string_view name) const {
  for (std::size_t i = 0; i < kCounters; ++i) {
    if (cache::counter_name(static_cast<cache::Counter>(i)) == name) return at(i);
  }
  return 0;
}

std::int64_t Counted::hits() const {
  static const std::vector<std::size_t> counters = counters_that_begin("hits_");
  return of_all(counters);
}

std::int64_t Counted::bypassed() const {
  static const std::vector<std::size_t> counters = counters_that_begin("bypassed_");
  return of_all(counters);
}

bool Counted::is_zero() const {
  return std::all_of(counts_.begin(), counts_.end(), [](std::int64_t count) { return count == 0; });
}

Counted sum_of(const store::CounterTotals& totals) {
  Counted sum;
  for (const store::CountedDay& day : totals.days) sum.add(day.counts);
  return sum;
}

std::map<std::string, Counted> sums_by_scope(const store::CounterTotals& totals) {
  std::map<std::string, Counted> sums;
  for (const store::CountedDay& day : totals.days) sums[day.scope].add(day.counts);
  return sums;
}

std::map<std::int32_t, Counted> sums_by_day(const store::CounterTotals& totals) {
  std::map<std::int32_t, Counted> sums;
  for (const store::CountedDay& day : totals.days) sums[day.day].add(day.counts);
  return sums;
}

ScopeNames names_of(const std::vector<Manifest>& manifests) {
  ScopeNames names;
  for (const Manifest& manifest : manifests) {
    // Counters know the beginning of a long scope.
    names[manifest.scope.substr(0, store::kMostScopeBytes)] = manifest.class_name;
  }
  return names;
}

std::string day_text(std::int32_t days_since_1970) {
  // No calendar of ours goes on for ten thousand years, nor would the product fit.
  constexpr std::int32_t kMostDays = 3'000'000;
  if (std::abs(std::int64_t{days_since_1970}) > kMostDays) return "-";
  // The first day of all counts as a time that was never set.
  const std::string time = utc_time_text(days_since_1970 * kDayUs);
  return time.empty() ? "-" : time.substr(0, time.find('T'));
}

}  // namespace modcache::command_line
