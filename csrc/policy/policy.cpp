// SPDX-License-Identifier: Apache-2.0
#include "policy/policy.h"

#include "policy/auto.h"

namespace modcache::policy {
namespace {

// Evicts the entry that was used longest ago. Best for a working set that fits and changes; useless
// for epochs over a dataset that does not fit.
class Lru final : public Policy {
 public:
  bool may_replace(Usage, std::uint64_t, Tick) override { return true; }
  std::uint32_t rank(Usage usage, Tick now) const override { return ~age_of(usage, now); }
};

// Stores what comes first, and nothing new once the tier is full. If the budget is lowered, the
// newest entries are evicted first: `used_at` is the time of insertion.
class Keep final : public Policy {
 public:
  bool may_replace(Usage, std::uint64_t, Tick) override { return false; }
  Usage used(Usage usage, Tick) const override { return usage; }
  std::uint32_t rank(Usage usage, Tick now) const override { return age_of(usage, now); }
};

}  // namespace

std::string_view kind_name(Kind kind) {
  switch (kind) {
    case Kind::kAuto: return "auto";
    case Kind::kLru: return "lru";
    case Kind::kKeep: return "keep";
  }
  return "";
}

Usage Policy::inserted(std::uint64_t, Tick now) { return {now, 0, 0, 0}; }

Usage Policy::used(Usage usage, Tick now) const {
  usage.used_at = now;
  return usage;
}

Usage Policy::retained(Usage usage, Tick now) const {
  constexpr Tick kMaxAge = Tick{1} << 31;
  if (age_of(usage, now) > kMaxAge) usage.used_at = now - kMaxAge;
  return usage;
}

std::unique_ptr<Policy> make_policy(Kind kind, void* shared_state) {
  switch (kind) {
    case Kind::kAuto: return std::make_unique<Auto>(shared_state);
    case Kind::kLru: return std::make_unique<Lru>();
    case Kind::kKeep: return std::make_unique<Keep>();
  }
  return std::make_unique<Lru>();
}

}  // namespace modcache::policy
