// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// What one thread has done since it began, as libcall_counters.so saw it.
struct CallCounters {
  std::int64_t allocations = 0;
  std::int64_t allocated_bytes = 0;
  std::int64_t locks = 0;
  std::int64_t copied_bytes = 0;  // by copies of 1 KiB and more
};

// The name and type of the one function that a program finds with dlsym.
constexpr char kCountersOfThisThread[] = "counters_of_this_thread";
using CountersOfThisThread = const CallCounters*();
