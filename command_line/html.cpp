// SPDX-License-Identifier: Apache-2.0
#include "command_line/html.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "command_line/terminal_text.h"
#include "command_line/units.h"

namespace modcache::command_line {
namespace {

// The width of a point and the height of a chart, in the units of its viewBox.
constexpr double kPointWidth = 100;
constexpr double kHeight = 100;

std::string coordinate(double number) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.6g", number);
  return text.data();
}

double height_of(const ChartPoint& point, const ChartAxis& axis) {
  return kHeight * (1 - std::clamp(point.value / axis.top, 0.0, 1.0));
}

// Neighbours are joined; a line of no length is a dot.
std::string line_svg(const std::vector<ChartPoint>& points, const ChartAxis& axis) {
  std::string line;
  std::string dots;
  bool is_joined = false;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (points[i].is_known) {
      const std::string place = coordinate((static_cast<double>(i) + 0.5) * kPointWidth) + ' ' +
                                coordinate(height_of(points[i], axis));
      line += (is_joined ? "L" : "M") + place;
      dots += "M" + place + "h0";
    }
    is_joined = points[i].is_known;
  }
  return "<path class=\"line\" d=\"" + line + "\"/><path class=\"dots\" d=\"" + dots + "\"/>";
}

std::string bars_svg(const std::vector<ChartPoint>& points, const ChartAxis& axis) {
  constexpr double kGap = 10;
  std::string bars;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const double top = height_of(points[i], axis);
    if (!points[i].is_known || top >= kHeight) continue;
    bars += 'M' + coordinate(static_cast<double>(i) * kPointWidth + kGap) + ' ' +
            coordinate(kHeight) + 'V' + coordinate(top) + 'h' + coordinate(kPointWidth - 2 * kGap) +
            'V' + coordinate(kHeight) + 'z';
  }
  return "<path class=\"bars\" d=\"" + bars + "\"/>";
}

std::string grid_svg(const ChartAxis& axis, double width) {
  std::string lines;
  for (std::size_t i = 0; i < axis.ticks.size(); ++i) {
    const double part = static_cast<double>(i) / static_cast<double>(axis.ticks.size() - 1);
    lines += "M0 " + coordinate(kHeight * (1 - part)) + 'H' + coordinate(width);
  }
  return "<path class=\"grid\" d=\"" + lines + "\"/>";
}

std::string told_svg(const std::vector<ChartPoint>& points) {
  std::string text;
  for (std::size_t i = 0; i < points.size(); ++i) {
    text += "<rect class=\"at\" x=\"" + coordinate(static_cast<double>(i) * kPointWidth) +
            "\" y=\"0\" width=\"" + coordinate(kPointWidth) + "\" height=\"" + coordinate(kHeight) +
            "\"><title>" + html_text(points[i].told) + "</title></rect>";
  }
  return text;
}

std::string ticks_html(const ChartAxis& axis) {
  std::string text = "<div class=\"ticks\" aria-hidden=\"true\">";
  for (auto tick = axis.ticks.rbegin(); tick != axis.ticks.rend(); ++tick) {
    text += "<span>" + html_text(*tick) + "</span>";
  }
  return text + "</div>";
}

// The first, the middle and the last date: more have no room on a telephone.
std::string dates_html(const std::vector<ChartPoint>& points) {
  std::string text = "<div class=\"dates\" aria-hidden=\"true\"><span>" +
                     html_text(points.front().label) + "</span>";
  if (points.size() > 4) {
    text += "<span>" + html_text(points[points.size() / 2].label) + "</span>";
  }
  if (points.size() > 1) text += "<span>" + html_text(points.back().label) + "</span>";
  return text + "</div>";
}

// "2 s" for "2.00 s".
std::string round_duration_text(std::int64_t time_us) {
  std::string text = duration_text(time_us);
  const std::size_t unit = text.find(' ');
  if (text.find('.') >= unit) return text;
  const std::size_t last = text.find_last_not_of('0', unit - 1);
  return text.erase(text[last] == '.' ? last : last + 1,
                    unit - (text[last] == '.' ? last : last + 1));
}

}  // namespace

std::string html_text(std::string_view text) { return html_of_printable(printable(text)); }

std::string html_of_printable(std::string_view text) {
  std::string html;
  for (const char c : text) {
    switch (c) {
      case '&': html += "&amp;"; break;
      case '<': html += "&lt;"; break;
      case '>': html += "&gt;"; break;
      case '"': html += "&quot;"; break;
      case '\'': html += "&#39;"; break;
      default: html += c;
    }
  }
  return html;
}

std::string chart_html(std::string_view title, std::string_view summary, ChartForm form,
                       const std::vector<ChartPoint>& points, const ChartAxis& axis) {
  const double width = static_cast<double>(points.size()) * kPointWidth;
  return "<figure class=\"chart\"><figcaption>" + html_text(title) + "</figcaption>" +
         ticks_html(axis) + "<svg role=\"img\" aria-label=\"" + html_text(summary) +
         "\" preserveAspectRatio=\"none\" viewBox=\"0 0 " + coordinate(width) + ' ' +
         coordinate(kHeight) + "\">" + grid_svg(axis, width) +
         (form == ChartForm::kLine ? line_svg(points, axis) : bars_svg(points, axis)) +
         told_svg(points) + "</svg>" + dates_html(points) + "</figure>\n";
}

ChartAxis duration_axis(std::int64_t most_us) {
  constexpr std::int64_t kMinute = 60'000'000;
  constexpr std::array<std::int64_t, 14> kSteps{
      kMinute,       2 * kMinute,    5 * kMinute,    10 * kMinute,  15 * kMinute,
      30 * kMinute,  60 * kMinute,   120 * kMinute,  180 * kMinute, 360 * kMinute,
      720 * kMinute, 1440 * kMinute, 2880 * kMinute, 7200 * kMinute};
  constexpr std::int64_t kMostSteps = 4;
  std::int64_t step = 1;
  for (int i = 0; step * kMostSteps < most_us && step < kMinute / 3; ++i) {
    step = i % 3 == 1 ? step / 2 * 5 : step * 2;  // 1, 2, 5, 10, 20, 50
  }
  for (std::size_t i = 0; i < kSteps.size() && step * kMostSteps < most_us; ++i) step = kSteps[i];
  while (step * kMostSteps < most_us && step < most_us) step *= 2;
  const std::int64_t steps = std::max<std::int64_t>(1, (most_us + step - 1) / step);
  ChartAxis axis;
  axis.top = static_cast<double>(step) * static_cast<double>(steps);
  for (std::int64_t i = 0; i <= steps; ++i) {
    axis.ticks.push_back(i == 0 ? "0" : round_duration_text(step * i));
  }
  return axis;
}

}  // namespace modcache::command_line
