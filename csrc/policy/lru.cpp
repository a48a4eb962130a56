// SPDX-License-Identifier: Apache-2.0
#include "policy/lru.h"

#include "policy/age.h"

namespace modcache::policy {

Usage Lru::inserted(std::uint64_t, Tick now) { return {now, 0, 0, 0}; }

Usage Lru::used(Usage usage, Tick now) const {
  usage.used_at = now;
  return usage;
}

Usage Lru::spared(Usage usage, Tick now) const { return with_bounded_age(usage, now); }

std::uint32_t Lru::rank(Usage usage, Tick now) const { return ~age_of(usage, now); }

}  // namespace modcache::policy
