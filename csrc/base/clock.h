// SPDX-License-Identifier: Apache-2.0
//
// What time it is.
#pragma once

#include <chrono>
#include <cstdint>

namespace modcache {

// Microseconds since 1970, as this machine's clock has it; it may be set back.
inline std::int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// The same in nanoseconds, as files' times are counted.
inline std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Milliseconds that only grow, from a beginning that means nothing.
inline std::int64_t steady_now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace modcache
