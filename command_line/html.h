// SPDX-License-Identifier: Apache-2.0
//
// Pieces of HTML. Whatever comes from a directory goes through html_text(), so that it stays text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace modcache::command_line {

// Returns the text as HTML shows it, also inside of an attribute in quotes. Bytes that are no text,
// and characters that would reorder what follows, are escaped as for a terminal.
std::string html_text(std::string_view text);
// Does the same for what printable() returned, or a part of it.
std::string html_of_printable(std::string_view text);

// One place on the time axis of a chart.
struct ChartPoint {
  std::string label;  // a date
  std::string told;   // what pointing at it says
  double value = 0;
  bool is_known = true;  // false: there is nothing to show
};

struct ChartAxis {
  double top = 1;  // the value at the upper end; above 0
  // From the lowest to the highest, at equal distances from 0 to `top`.
  std::vector<std::string> ticks;
};

enum class ChartForm { kLine, kBars };

// Returns a chart that takes the width that it gets, with `title` above it; `summary` is for who
// cannot see it. REQUIRES: at least one point and two ticks.
std::string chart_html(std::string_view title, std::string_view summary, ChartForm form,
                       const std::vector<ChartPoint>& points, const ChartAxis& axis);

// Returns an axis of two to five ticks, at times that people count in, that reaches `most_us`.
ChartAxis duration_axis(std::int64_t most_us);

}  // namespace modcache::command_line
