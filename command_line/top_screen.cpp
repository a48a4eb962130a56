// SPDX-License-Identifier: Apache-2.0
#include "command_line/top_screen.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

#include "command_line/report.h"
#include "command_line/table_layout.h"
#include "command_line/terminal_text.h"
#include "command_line/units.h"

namespace modcache::command_line {
namespace {

constexpr std::size_t kMostBar = 40;
constexpr std::size_t kLabelColumns = 11;

std::string rate_of(const Counted& counted) {
  return Cell::share(counted.hits(), counted.looked_up()).for_people();
}

// "0", "0.4", "12", "1,234".
std::string rate_text(double number) {
  if (number == 0 || number >= 9.95) return count_text(std::llround(number));
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "%.1f", number);
  return text.data();
}

std::string saved_per_second(const Activity& activity, const Counted& now) {
  const double saved_us = activity.per_second(now.saved_us());
  return duration_text(std::llround(std::min(saved_us, 9e18)));
}

std::string labelled(const char* label, const std::string& text) {
  return padded(label, kLabelColumns, false) + text;
}

// Cells that fill from left to right, in eighths.
std::string bar(double share, std::size_t columns) {
  static constexpr std::array<const char*, 8> kParts{"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths = static_cast<std::size_t>(
      std::llround(std::clamp(share, 0.0, 1.0) * static_cast<double>(columns) * 8));
  std::string text;
  for (std::size_t i = 0; i < eighths / 8; ++i) text += "█";
  text += kParts[eighths % 8];
  const std::size_t filled = (eighths + 7) / 8;
  for (std::size_t i = filled; i < columns; ++i) text += "·";
  return text;
}

// The last values, each as high as it is beside the highest.
std::string course(const std::vector<std::int64_t>& values, std::size_t columns) {
  static constexpr std::array<const char*, 9> kHeights{" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const std::size_t first = values.size() > columns ? values.size() - columns : 0;
  std::int64_t most = 1;
  for (std::size_t i = first; i < values.size(); ++i) most = std::max(most, values[i]);
  std::string text;
  for (std::size_t i = first; i < values.size(); ++i) {
    const double height = 8.0 * static_cast<double>(values[i]) / static_cast<double>(most);
    text += kHeights[static_cast<std::size_t>(std::ceil(height))];
  }
  return text;
}

std::string title_of(const Activity& activity, std::size_t columns) {
  std::string end = "mode " + (activity.mode.empty() ? "?" : activity.mode) + "   " +
                    count_text(static_cast<std::int64_t>(activity.processes)) +
                    (activity.processes == 1 ? " process" : " processes");
  if (columns_of(end) + 12 > columns) end = activity.mode;
  const std::size_t room = columns - std::min(columns, columns_of(end) + kBetweenColumns);
  return padded(shortened(printable(activity.path), room), room, false) +
         std::string(kBetweenColumns, ' ') + end;
}

std::string budget_text(const Activity& activity, std::size_t columns) {
  const std::string text =
      size_text(activity.disk_bytes) + " of " + size_text(activity.budget_bytes);
  const std::size_t taken = kLabelColumns + kBetweenColumns + columns_of(text);
  const std::size_t room = columns > taken ? std::min(kMostBar, columns - taken) : 0;
  if (activity.budget_bytes <= 0 || room < 5) return text;
  const double share =
      static_cast<double>(activity.disk_bytes) / static_cast<double>(activity.budget_bytes);
  return bar(share, room) + std::string(kBetweenColumns, ' ') + text;
}

std::vector<std::string> facts_of(const Activity& activity, std::size_t columns) {
  const Counted& now = activity.now;
  std::string rate = rate_of(now) + " now   " + rate_of(activity.total) + " in total";
  const std::string since = "   since " + local_time_text(activity.since_us).substr(0, 16);
  if (activity.since_us > 0 && kLabelColumns + columns_of(rate + since) <= columns) rate += since;
  const std::string flow = rate_text(activity.per_second(now.hits())) + " hits/s   " +
                           rate_text(activity.per_second(now.misses())) + " misses/s";
  std::string saved = saved_per_second(activity, now) + " each second";
  const std::string in_total = "   " + duration_text(activity.total.saved_us()) + " in total";
  if (kLabelColumns + columns_of(saved + in_total) <= columns) saved += in_total;
  return {title_of(activity, columns),
          "",
          labelled("hit rate", rate),
          labelled("look-ups", flow),
          labelled("saved", saved),
          labelled("disk", budget_text(activity, columns)),
          labelled("", course(activity.looked_up,
                              columns > kLabelColumns ? columns - kLabelColumns : 0))};
}

struct Table {
  std::vector<std::string> labels;
  std::vector<std::vector<std::string>> rows;
};

// The narrower a terminal, the fewer columns.
Table table_of(const Activity& activity, std::size_t detail, std::size_t most_rows) {
  Table table;
  table.labels = {"CACHED", "NOW", "HITS/S"};
  if (detail > 0) table.labels = {"SCOPE", "CACHED", "NOW", "TOTAL", "HITS/S", "MISSES/S"};
  if (detail > 1) table.labels.insert(table.labels.end(), {"SAVED/S", "SAVED"});
  for (const ScopeActivity& one : activity.scopes) {
    if (table.rows.size() == most_rows) break;
    const std::string scope = one.scope.empty() ? "-" : printable(one.scope);
    const std::string name = one.class_name.empty() ? "-" : printable(one.class_name);
    const std::string hits = rate_text(activity.per_second(one.now.hits()));
    std::vector<std::string> row{name == "-" ? scope : name, rate_of(one.now), hits};
    if (detail > 0) {
      row = {scope,
             name,
             rate_of(one.now),
             rate_of(one.total),
             hits,
             rate_text(activity.per_second(one.now.misses()))};
    }
    if (detail > 1) {
      row.push_back(saved_per_second(activity, one.now));
      row.push_back(duration_text(one.total.saved_us()));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

bool append_table(const Table& table, std::size_t columns, std::vector<std::string>& lines) {
  const std::size_t texts = table.labels[0] == "SCOPE" ? 2 : 1;
  std::vector<ColumnWidth> widths;
  for (std::size_t i = 0; i < table.labels.size(); ++i) {
    ColumnWidth width{columns_of(table.labels[i]), i < texts};
    for (const auto& row : table.rows) width.columns = std::max(width.columns, columns_of(row[i]));
    widths.push_back(width);
  }
  if (!fit(widths, columns)) return false;
  const auto append = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      if (i > 0) line += std::string(kBetweenColumns, ' ');
      line += padded(shortened(cells[i], widths[i].columns), widths[i].columns, i >= texts);
    }
    lines.push_back(line);
  };
  append(table.labels);
  for (const auto& row : table.rows) append(row);
  return true;
}

}  // namespace

std::vector<std::string> top_screen(const Activity& activity, std::size_t columns,
                                    std::size_t rows) {
  std::vector<std::string> lines = facts_of(activity, columns);
  const bool is_low = rows < 16;
  if (is_low) lines.erase(lines.end() - 1);    // the course
  if (is_low) lines.erase(lines.begin() + 1);  // the blank line
  if (!activity.failure.empty()) lines.push_back(printable(activity.failure));
  const std::size_t taken =
      lines.size() + (is_low ? 1 : 3);  // labels, and with room blanks and help
  if (rows > taken && !activity.scopes.empty()) {
    if (!is_low) lines.emplace_back();
    for (const std::size_t detail : {2, 1, 0}) {
      if (append_table(table_of(activity, detail, rows - taken), columns, lines)) break;
    }
  }
  if (!is_low) {
    lines.resize(std::max(lines.size(), rows - 1));
    lines.emplace_back("q quits");
  }
  if (lines.size() > rows) lines.resize(rows);
  for (std::string& line : lines) line = shortened(line, columns);
  return lines;
}

std::string top_line_title() {
  return "TIME                 HIT RATE    TOTAL    HITS/S  MISSES/S    SAVED/S      DISK  MODE  "
         "PROCESSES";
}

std::string top_line(const Activity& activity, std::int64_t at_us) {
  const auto column = [](const std::string& text, std::size_t width) {
    return std::string(kBetweenColumns, ' ') + padded(text, width, true);
  };
  const std::string time = local_time_text(at_us);
  if (!activity.failure.empty()) return time + "  " + printable(activity.failure);
  return time + column(rate_of(activity.now), 8) + column(rate_of(activity.total), 7) +
         column(rate_text(activity.per_second(activity.now.hits())), 8) +
         column(rate_text(activity.per_second(activity.now.misses())), 8) +
         column(saved_per_second(activity, activity.now), 9) +
         column(size_text(activity.disk_bytes), 8) + "  " + padded(activity.mode, 4, false) +
         column(count_text(static_cast<std::int64_t>(activity.processes)), 9);
}

}  // namespace modcache::command_line
