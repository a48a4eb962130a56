// SPDX-License-Identifier: Apache-2.0
//
// Numbers as people read and write them. Pure functions.
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
// Local time to the second; what is no time that a calendar has is "-".
std::string local_time_text(std::int64_t time_us);
// "2026-11-21T23:50:19.000001Z"; empty where a calendar does not have it.
std::string utc_time_text(std::int64_t time_us);

// "90", "15min", "36h", "30d", "2w" -> microseconds; a bare number is seconds, like `max_age`.
Result<std::int64_t> parse_age_us(std::string_view text);

// With everything escaped that would move a terminal's cursor or change its colours, or that is not
// UTF-8: \n, \t, \x1b, \xff; and \ itself.
std::string printable(std::string_view text);
// The same for messages, which have texts made printable() in them: lines and backslashes stay.
std::string printable_message(std::string_view text);
// Columns that it takes on a terminal. REQUIRES: UTF-8.
std::size_t columns_of(std::string_view text);

}  // namespace modcache::command_line
