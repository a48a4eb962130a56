// SPDX-License-Identifier: Apache-2.0
//
// Counted: what the processes that use a directory counted (store/counters/), by scope and day, and
// sums of it. A counter has the name here that modcache.stats() shows it by; one that this program
// does not know counts nothing.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cache/stats.h"
#include "command_line/manifest.h"
#include "command_line/report.h"
#include "store/counters/counter_totals.h"

namespace modcache::command_line {

class Counted {
 public:
  void add(const store::Counts& counts) { store::add_counts(counts, counts_); }

  std::int64_t of(std::string_view name) const;
  std::int64_t hits() const;
  std::int64_t misses() const { return of("misses"); }
  std::int64_t looked_up() const { return hits() + misses(); }
  std::int64_t bypassed() const;
  std::int64_t saved_us() const { return of("saved_us"); }
  bool is_zero() const;

 private:
  // Within bounds that sums of all counters stay in, as a damaged file may hold any number.
  std::int64_t at(std::size_t counter) const;
  std::int64_t of_all(const std::vector<std::size_t>& counters) const;

  store::Counts counts_{};
};

Counted sum_of(const store::CounterTotals& totals);
// The scope "" stands for what has none.
std::map<std::string, Counted> sums_by_scope(const store::CounterTotals& totals);
std::map<std::int32_t, Counted> sums_by_day(const store::CounterTotals& totals);

// The classes and cached functions on record, by the scope as counters know it.
using ScopeNames = std::map<std::string, std::string>;
ScopeNames names_of(const std::vector<Manifest>& manifests);

// "2026-11-28"; "-" for a day that no calendar has.
std::string day_text(std::int32_t days_since_1970);

// Reports what the processes of a directory counted: all of it, by scope, or by day.
// Adds the member `counted`: an object.
void report_counted(Report& report, const store::CounterTotals& totals);
// Adds the member `by_scope`: rows, those that saved most time first.
void report_by_scope(Report& report, const store::CounterTotals& totals, const ScopeNames& names);
// Adds the member `by_day`: rows, the oldest first.
void report_by_day(Report& report, const store::CounterTotals& totals);

}  // namespace modcache::command_line
