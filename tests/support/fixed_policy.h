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

  bool may_replace(policy::Usage, std::uint64_t, policy::Tick) override { return admits_; }
  // What was used last has the greatest.
  std::uint32_t rank(policy::Usage usage, policy::Tick now) const override {
    return ~(now - usage.used_at);
  }

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
