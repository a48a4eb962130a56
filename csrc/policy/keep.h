// SPDX-License-Identifier: Apache-2.0
//
// Keep: first come, never evicted. A full tier takes nothing new. If the tier has to shrink all the
// same, because its budget was lowered, the newest entries leave first. Keeps no state of its own.
#pragma once

#include "policy/policy.h"

namespace modcache::policy {

class Keep final : public Policy {
 public:
  void saw(std::uint64_t, bool, Tick) override {}
  void measured(std::uint64_t, std::uint64_t) override {}
  bool admits(std::uint64_t, Tick) override { return false; }
  Usage inserted(std::uint64_t hash, Tick now) override;
  Usage used(Usage usage, Tick) const override { return usage; }
  Usage spared(Usage usage, Tick now) const override;
  std::uint32_t rank(Usage usage, Tick now) const override;
  void evicted(std::uint64_t, Usage, Tick) override {}
};

}  // namespace modcache::policy
