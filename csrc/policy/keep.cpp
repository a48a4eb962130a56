// SPDX-License-Identifier: Apache-2.0
#include "policy/keep.h"

#include "policy/age.h"

namespace modcache::policy {

// Under this policy `used_at` is the time of insertion.
Usage Keep::inserted(std::uint64_t, Tick now) { return {now, 0, 0, 0}; }

Usage Keep::spared(Usage usage, Tick now) const { return with_bounded_age(usage, now); }

std::uint32_t Keep::rank(Usage usage, Tick now) const { return age_of(usage, now); }

}  // namespace modcache::policy
