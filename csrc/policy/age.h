// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic on ticks, which wrap around.
#pragma once

#include "policy/policy.h"

namespace modcache::policy {

inline constexpr Tick kMostAge = Tick{1} << 31;

// Returns whether `tick` lies before `other`. REQUIRES: they are less than kMostAge apart.
inline bool is_before(Tick tick, Tick other) { return tick - other >= kMostAge; }

// Returns how many ticks ago the entry was used. 0 when that was slightly after `now`, which
// happens when another thread uses it after `now` was read.
inline Tick age_of(Usage usage, Tick now) {
  constexpr Tick kMostAhead = Tick{1} << 24;
  const Tick age = now - usage.used_at;
  return age > ~kMostAhead ? 0 : age;
}

// Keeps an old entry old: without this it would look new once ticks have wrapped around.
inline Usage with_bounded_age(Usage usage, Tick now) {
  if (age_of(usage, now) > kMostAge) usage.used_at = now - kMostAge;
  return usage;
}

}  // namespace modcache::policy
