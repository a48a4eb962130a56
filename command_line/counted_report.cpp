// SPDX-License-Identifier: Apache-2.0
#include "command_line/counted_report.h"

#include <algorithm>
#include <array>
#include <utility>

namespace modcache::command_line {
namespace {

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
