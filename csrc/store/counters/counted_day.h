// SPDX-License-Identifier: Apache-2.0
//
// The terms of this folder: what the processes of a directory counted for one scope on one day.
// A counter is a number here; cache/stats.h says which stands for what.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace modcache::store {

inline constexpr std::size_t kMostCounters = 32;
using Counts = std::array<std::int64_t, kMostCounters>;

struct CountedDay {
  std::string scope;     // its first kMostScopeBytes bytes; empty: events that have no scope
  std::int32_t day = 0;  // since 1970-01-01, UTC
  Counts counts{};
};

inline constexpr std::size_t kMostScopeBytes = 224;

// Stands for the scopes that a process had no room for: it counted so many that day.
inline constexpr std::string_view kOtherScopes = "(other scopes)";

// Adds without overflow, as a file may hold any number.
inline void add_counts(const Counts& added, Counts& sum) {
  for (std::size_t i = 0; i < kMostCounters; ++i) {
    sum[i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(sum[i]) +
                                       static_cast<std::uint64_t>(added[i]));
  }
}

std::int32_t day_of(std::int64_t us_since_1970);

}  // namespace modcache::store
