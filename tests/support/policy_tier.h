// SPDX-License-Identifier: Apache-2.0
//
// PolicyTier: a tier of `room` samples without values, all of one size, that evicts as the memory
// tier does, to see what a policy finds of a trace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "policy/policy.h"
#include "support/traces.h"

namespace modcache::testing {

class PolicyTier {
 public:
  PolicyTier(policy::Policy& policy, std::size_t room) : policy_(policy), room_(room) {}

  // Asks for each and takes what was missing. The share that was found.
  double found_of(const Trace& trace) {
    std::size_t found = 0;
    for (const std::uint32_t sample : trace) found += find_or_insert(sample) ? 1 : 0;
    return static_cast<double>(found) / static_cast<double>(trace.size());
  }

 private:
  struct Kept {
    std::uint32_t sample;
    policy::Usage usage;
  };

  bool find_or_insert(std::uint32_t sample) {
    const auto found = places_.find(sample);
    policy_.saw(hash_of(sample), found != places_.end(), ++now_);
    if (found != places_.end()) {
      policy::Usage& usage = kept_[found->second].usage;
      usage = policy_.used(usage, now_);
      return true;
    }
    policy_.measured(kept_.size(), room_);
    ++now_;
    if (kept_.size() >= room_) {
      if (!policy_.admits(hash_of(sample), now_)) return false;
      evict();
    }
    places_[sample] = kept_.size();
    kept_.push_back({sample, policy_.inserted(hash_of(sample), now_)});
    return false;
  }

  void evict() {
    std::size_t next = random_.below(kept_.size());
    for (int i = 0; i < 15; ++i) {
      const std::size_t other = random_.below(kept_.size());
      if (policy_.rank(kept_[other].usage, now_) < policy_.rank(kept_[next].usage, now_)) {
        next = other;
      }
    }
    policy_.evicted(hash_of(kept_[next].sample), kept_[next].usage, now_);
    places_.erase(kept_[next].sample);
    if (next + 1 < kept_.size()) {
      kept_[next] = kept_.back();
      places_[kept_[next].sample] = next;
    }
    kept_.pop_back();
  }

  policy::Policy& policy_;
  const std::size_t room_;
  std::vector<Kept> kept_;
  std::unordered_map<std::uint32_t, std::size_t> places_;
  Random random_{1};
  policy::Tick now_ = 0;
};

}  // namespace modcache::testing
