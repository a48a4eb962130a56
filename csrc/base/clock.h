// SPDX-License-Identifier: Apache-2.0
//
// Wall-clock and steady time.
#pragma once

#include <chrono>
#include <cstdint>

namespace modcache {

// Microseconds since 1970 by the system clock, which somebody may set back.
inline std::int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Nanoseconds since 1970 by the same clock; files' times have this unit.
inline std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Milliseconds of a clock that never goes back. Only differences mean anything.
inline std::int64_t steady_now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace modcache
