// SPDX-License-Identifier: Apache-2.0
//
// Policies whose answers a test knows: first in, first out, and one that lets nobody in.
#pragma once

#include <memory>

#include "policy/policy.h"

namespace modcache::testing {

class FixedPolicy final : public policy::Policy {
 public:
  explicit FixedPolicy(bool admits) : admits_(admits) {}

  void saw(std::uint64_t, bool, policy::Tick) override {}
  void measured(std::uint64_t, std::uint64_t) override {}
  bool admits(std::uint64_t, policy::Tick) override { return admits_; }
  policy::Usage inserted(std::uint64_t, policy::Tick now) override { return {now, 0, 0, 0}; }
  policy::Usage used(policy::Usage usage, policy::Tick now) const override {
    usage.used_at = now;
    return usage;
  }
  policy::Usage spared(policy::Usage usage, policy::Tick) const override { return usage; }
  // What was used last has the greatest.
  std::uint32_t rank(policy::Usage usage, policy::Tick now) const override {
    return ~(now - usage.used_at);
  }
  void evicted(std::uint64_t, policy::Usage, policy::Tick) override {}

 private:
  const bool admits_;
};

inline std::unique_ptr<policy::Policy> keeping_policy(void*) {
  return std::make_unique<FixedPolicy>(false);
}
inline std::unique_ptr<policy::Policy> admitting_policy(void*) {
  return std::make_unique<FixedPolicy>(true);
}

}  // namespace modcache::testing
