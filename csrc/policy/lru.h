// SPDX-License-Identifier: Apache-2.0
//
// Lru: the entry that was used longest ago leaves first. Best for a working set that fits and
// changes; useless for epochs over a set that does not fit. Keeps no state of its own.
#pragma once

#include "policy/policy.h"

namespace modcache::policy {

class Lru final : public Policy {
 public:
  void saw(std::uint64_t, bool, Tick) override {}
  void measured(std::uint64_t, std::uint64_t) override {}
  bool admits(std::uint64_t, Tick) override { return true; }
  Usage inserted(std::uint64_t hash, Tick now) override;
  Usage used(Usage usage, Tick now) const override;
  Usage spared(Usage usage, Tick now) const override;
  std::uint32_t rank(Usage usage, Tick now) const override;
  void evicted(std::uint64_t, Usage, Tick) override {}
};

}  // namespace modcache::policy
