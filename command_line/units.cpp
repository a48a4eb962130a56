// SPDX-License-Identifier: Apache-2.0
#include "command_line/units.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <limits>

namespace modcache::command_line {
namespace {

constexpr std::int64_t kSecond = 1'000'000;
constexpr std::int64_t kMinute = 60 * kSecond;
constexpr std::int64_t kHour = 60 * kMinute;
constexpr std::int64_t kDay = 24 * kHour;

// Writes three significant digits.
std::string short_number(double number) {
  const int digits = number < 9.995 ? 2 : number < 99.95 ? 1 : 0;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, number);
  return text.data();
}

std::string two_units(std::int64_t time, std::int64_t large, const char* large_name,
                      std::int64_t small, const char* small_name) {
  const std::string text = count_text(time / large) + ' ' + large_name;
  const std::int64_t rest = time % large / small;
  return rest == 0 ? text : text + ' ' + std::to_string(rest) + ' ' + small_name;
}

bool broken_down(std::int64_t time_us, bool is_local, std::tm& parts) {
  // Years have four digits. 0 stands for a time that was never set.
  constexpr std::int64_t kYear10000 = 253'402'300'800;
  const std::int64_t seconds = time_us / kSecond;
  if (time_us <= 0 || seconds >= kYear10000) return false;
  const std::time_t time = seconds;
  return (is_local ? localtime_r(&time, &parts) : gmtime_r(&time, &parts)) != nullptr;
}

std::string formatted(const std::tm& parts, char between) {
  std::array<char, 40> text{};
  std::strftime(text.data(), text.size(),
                between == 'T' ? "%Y-%m-%dT%H:%M:%S" : "%Y-%m-%d %H:%M:%S", &parts);
  return text.data();
}

}  // namespace

std::string count_text(std::int64_t count) {
  std::string text = std::to_string(count);
  const std::size_t first = count < 0 ? 1 : 0;
  for (std::size_t place = text.size(); place > first + 3;) {
    place -= 3;
    text.insert(place, 1, ',');
  }
  return text;
}

std::string size_text(std::int64_t size_bytes) {
  if (std::llabs(size_bytes) < 1000) return std::to_string(size_bytes) + " B";
  static constexpr std::array<const char*, 6> kUnits{" kB", " MB", " GB", " TB", " PB", " EB"};
  double number = static_cast<double>(size_bytes) / 1000;
  std::size_t unit = 0;
  for (; std::fabs(number) >= 999.5 && unit + 1 < kUnits.size(); ++unit) number /= 1000;
  return (number < 0 ? "-" : "") + short_number(std::fabs(number)) + kUnits[unit];
}

std::string duration_text(std::int64_t time_us) {
  if (time_us < 0) return "-";
  if (time_us < 1000) return std::to_string(time_us) + " us";
  if (time_us < 999'500) return short_number(static_cast<double>(time_us) / 1e3) + " ms";
  if (time_us < kMinute) return short_number(static_cast<double>(time_us) / 1e6) + " s";
  if (time_us < kHour) return two_units(time_us, kMinute, "min", kSecond, "s");
  if (time_us < kDay) return two_units(time_us, kHour, "h", kMinute, "min");
  return two_units(time_us, kDay, "d", kHour, "h");
}

std::string local_time_text(std::int64_t time_us) {
  std::tm parts{};
  return broken_down(time_us, true, parts) ? formatted(parts, ' ') : "-";
}

std::string utc_time_text(std::int64_t time_us) {
  std::tm parts{};
  if (!broken_down(time_us, false, parts)) return "";
  std::array<char, 16> fraction{};
  std::snprintf(fraction.data(), fraction.size(), ".%06dZ", static_cast<int>(time_us % kSecond));
  return formatted(parts, 'T') + fraction.data();
}

Result<std::int64_t> parse_age_us(std::string_view text) {
  struct Unit {
    std::string_view name;
    std::int64_t time_us;
  };
  static constexpr std::array<Unit, 6> kUnits{{{"", kSecond},
                                               {"s", kSecond},
                                               {"min", kMinute},
                                               {"h", kHour},
                                               {"d", kDay},
                                               {"w", 7 * kDay}}};
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  std::string_view name(rest, static_cast<std::size_t>(end - rest));
  while (!name.empty() && name.front() == ' ') name.remove_prefix(1);
  for (const Unit& unit : kUnits) {
    if (error != std::errc() || unit.name != name || number < 0) continue;
    if (number > std::numeric_limits<std::int64_t>::max() / unit.time_us) break;
    return number * unit.time_us;
  }
  return Status::invalid_argument("'" + std::string(text) +
                                  "' is no age; valid are seconds, or a number with one of s, min, "
                                  "h, d, w, such as 90, 36h or 30d");
}

}  // namespace modcache::command_line
