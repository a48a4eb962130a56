// SPDX-License-Identifier: Apache-2.0
//
// Differences of ticks that wrap around.
#pragma once

#include "policy/policy.h"

namespace modcache::policy {

inline constexpr Tick kMostAge = Tick{1} << 31;

// Whether `tick` lies before `other`, less than kMostAge apart.
inline bool is_before(Tick tick, Tick other) { return tick - other >= kMostAge; }

// How long ago the entry was used. Others may have used it since `now` was taken: not at all, then.
inline Tick age_of(Usage usage, Tick now) {
  constexpr Tick kMostAhead = Tick{1} << 24;
  const Tick age = now - usage.used_at;
  return age > ~kMostAhead ? 0 : age;
}

// What is old stays old, instead of becoming new when ticks have gone all the way around.
inline Usage with_bounded_age(Usage usage, Tick now) {
  if (age_of(usage, now) > kMostAge) usage.used_at = now - kMostAge;
  return usage;
}

}  // namespace modcache::policy
