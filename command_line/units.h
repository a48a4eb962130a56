// SPDX-License-Identifier: Apache-2.0
//
// Conversion of numbers to and from text for people. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace modcache::command_line {

std::string count_text(std::int64_t count);       // "1,234,567"
std::string size_text(std::int64_t size_bytes);   // "999 B", "1.50 kB", "12.3 GB": powers of 1000
std::string duration_text(std::int64_t time_us);  // "7 us", "1.50 ms", "2 min 5 s", "3 d 4 h"
// Local time to the second; "-" for a time that no calendar has.
std::string local_time_text(std::int64_t time_us);
// "2026-11-21T23:50:19.000001Z"; empty for a time that no calendar has.
std::string utc_time_text(std::int64_t time_us);

// Returns the words of a container, one behind the other.
template <typename Words>
std::string joined(const Words& words, const char* separator = ", ") {
  std::string text;
  for (const std::string& word : words) {
    if (&word != &*words.begin()) text += separator;
    text += word;
  }
  return text;
}

// Parses "90", "15min", "36h", "30d", "2w"; a bare number is in seconds, like `max_age`.
Result<std::int64_t> parse_age_us(std::string_view text);

}  // namespace modcache::command_line
