// SPDX-License-Identifier: Apache-2.0
#include "command_line/counted.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

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

// Facts that people see only where there are some, unless `is_always`.
struct ShownCounter {
  std::string_view name;
  const char* label;
  bool is_always = false;
};
constexpr std::array<ShownCounter, 4> kHits{{{"hits_memory", "  in memory", true},
                                             {"hits_disk", "  on disk", true},
                                             {"hits_remote", "  remote"},
                                             {"hit_bytes", "  size of their values"}}};
// Calls under `off` count in their process alone.
constexpr std::array<ShownCounter, 6> kBypasses{
    {{"bypassed_grad", "  a result requires grad"},
     {"bypassed_impure", "  a run is not repeatable"},
     {"bypassed_type", "  no tier holds such values"},
     {"bypassed_rows", "  not cacheable by row"},
     {"bypassed_identity", "  module not identified"},
     {"bypassed_verify", "  the scope was found wrong"}}};
constexpr std::array<ShownCounter, 9> kOthers{{{"stored", "stored", true},
                                               {"stored_bytes", "  size of their values"},
                                               {"key_conflicts", "key conflicts"},
                                               {"verified", "hits that were verified"},
                                               {"verify_differences", "  of them different"},
                                               {"evicted", "evicted"},
                                               {"not_kept", "not kept"},
                                               {"corrupt", "corrupt entries"},
                                               {"errors", "errors", true}}};

Cell cell_of(std::string_view name, std::int64_t count) {
  const auto ends_with = [&](std::string_view end) {
    return name.size() > end.size() && name.substr(name.size() - end.size()) == end;
  };
  if (ends_with("_us")) return Cell::duration_us(count);
  return ends_with("_bytes") ? Cell::size_bytes(count) : Cell::count(count);
}

template <std::size_t N>
void report_counters(Report& report, const std::array<ShownCounter, N>& shown,
                     const Counted& counted, bool is_none) {
  for (const ShownCounter& each : shown) {
    const std::int64_t count = counted.of(each.name);
    report.add(each.name, (each.is_always && !is_none) || count > 0 ? each.label : "",
               cell_of(each.name, count));
  }
}

void append_counted_columns(std::vector<Column>& columns) {
  for (const auto& [name, label] :
       {std::pair("hit_rate", "HIT RATE"), std::pair("hits", "HITS"), std::pair("misses", "MISSES"),
        std::pair("bypassed", "BYPASSED"), std::pair("saved_us", "SAVED"),
        std::pair("run_us", "RUN TIME"), std::pair("stored", "STORED")}) {
    columns.push_back({name, label});
  }
}

void append_counted_cells(const Counted& counted, std::vector<Cell>& cells) {
  cells.push_back(Cell::share(counted.hits(), counted.looked_up()));
  cells.push_back(Cell::count(counted.hits()));
  cells.push_back(Cell::count(counted.misses()));
  cells.push_back(Cell::count(counted.bypassed()));
  cells.push_back(Cell::duration_us(counted.saved_us()));
  cells.push_back(Cell::duration_us(counted.of("run_us")));
  cells.push_back(Cell::count(counted.of("stored")));
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

void report_counted(Report& report, const store::CounterTotals& totals) {
  const Counted counted = sum_of(totals);
  const bool is_none = counted.is_zero();
  report.begin_group("counted");
  report.add("hit_rate", "hit rate",
             counted.looked_up() > 0
                 ? Cell::share(counted.hits(), counted.looked_up())
                 : Cell::absent_as(is_none ? "none counted yet" : "no look-ups"));
  const auto label = [is_none](const char* text) { return is_none ? "" : text; };
  report.add("saved_us", label("time saved"), Cell::duration_us(counted.saved_us()));
  report.add("hits", label("hits"), Cell::count(counted.hits()));
  report_counters(report, kHits, counted, is_none);
  report.add("misses", label("misses"), Cell::count(counted.misses()));
  report.add("run_us", label("  time that they ran"), Cell::duration_us(counted.of("run_us")));
  report.add("bypassed", label("bypassed"), Cell::count(counted.bypassed()));
  report_counters(report, kBypasses, counted, is_none);
  report_counters(report, kOthers, counted, is_none);
  report.add("since_at", totals.since_us > 0 ? "counted since" : "",
             Cell::time_us(totals.since_us));
  report.add("processes", totals.live_processes > 0 ? "processes now" : "",
             Cell::count(static_cast<std::int64_t>(totals.live_processes)));
  report.end_group();
}

void report_by_scope(Report& report, const store::CounterTotals& totals, const ScopeNames& names) {
  std::vector<std::pair<std::string, Counted>> sums;
  for (auto& [scope, counted] : sums_by_scope(totals)) sums.emplace_back(scope, counted);
  std::sort(sums.begin(), sums.end(), [](const auto& a, const auto& b) {
    const std::int64_t saved_a = a.second.saved_us();
    const std::int64_t saved_b = b.second.saved_us();
    return saved_a != saved_b ? saved_a > saved_b : a.first < b.first;
  });
  std::vector<Column> columns{{"scope", "SCOPE"}, {"class", "CACHED"}};
  append_counted_columns(columns);
  report.begin_rows("by_scope", columns, "");
  for (const auto& [scope, counted] : sums) {
    const auto name = names.find(scope);
    std::vector<Cell> cells{Cell::text_if_any(scope),
                            name == names.end() ? Cell::absent() : Cell::text(name->second)};
    append_counted_cells(counted, cells);
    report.add_row(std::move(cells));
  }
  report.end_rows();
}

void report_by_day(Report& report, const store::CounterTotals& totals) {
  std::vector<Column> columns{{"day", "DAY"}};
  append_counted_columns(columns);
  report.begin_rows("by_day", columns, "");
  for (const auto& [day, counted] : sums_by_day(totals)) {
    std::vector<Cell> cells{Cell::text(day_text(day))};
    append_counted_cells(counted, cells);
    report.add_row(std::move(cells));
  }
  report.end_rows();
}

}  // namespace modcache::command_line
