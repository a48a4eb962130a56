// SPDX-License-Identifier: Apache-2.0
//
// PolicyTier: simulates a tier of `room` entries of one size without values, to measure the hit
// rate of a policy over a trace. It evicts as the memory tier or as the store does.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "policy/policy.h"
#include "support/traces.h"

namespace modcache::testing {

enum class Eviction {
  kSampled,  // the memory tier: for each new entry the lowest ranked of a few
  kRanked,   // the store: in the background, the lowest ranked of all, many at once
};

class PolicyTier {
 public:
  PolicyTier(policy::Policy& policy, std::size_t room, Eviction eviction = Eviction::kSampled)
      : policy_(policy), room_(room), eviction_(eviction) {}

  // Looks up each sample and inserts those that are missing. Returns the share that was found.
  double hit_rate(const Trace& trace) {
    std::size_t found = 0;
    for (const std::uint32_t sample : trace) found += find_or_insert(sample) ? 1 : 0;
    return static_cast<double>(found) / static_cast<double>(trace.size());
  }

  std::size_t insertions() const { return insertions_; }

 private:
  struct Kept {
    std::uint32_t sample;
    policy::Usage usage;
  };

  bool find_or_insert(std::uint32_t sample) {
    const auto found = places_.find(sample);
    ++now_;
    policy_.saw(hash_of(sample), found != places_.end());
    if (found != places_.end()) {
      policy::Usage& usage = kept_[found->second].usage;
      usage = policy_.used(usage, now_);
      return true;
    }
    policy_.set_capacity(room_);
    is_full_ = is_full_ || kept_.size() >= room_;
    if (is_full_) {
      const std::size_t victim = lowest_of_sample();
      if (!policy_.may_replace(kept_[victim].usage, hash_of(sample), now_)) return false;
      if (eviction_ == Eviction::kSampled) evict(victim);
      if (kept_.size() >= room_) evict_many();
    }
    ++insertions_;
    ++now_;
    places_[sample] = kept_.size();
    kept_.push_back({sample, policy_.inserted(hash_of(sample), now_)});
    return false;
  }

  std::uint32_t rank(std::size_t place) const { return policy_.rank(kept_[place].usage, now_); }

  std::size_t lowest_of_sample() {
    std::size_t lowest = random_.below(kept_.size());
    for (std::size_t i = 1; i < policy::kSampledEntries; ++i) {
      const std::size_t other = random_.below(kept_.size());
      if (rank(other) < rank(lowest)) lowest = other;
    }
    return lowest;
  }

  void evict_many() {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> ranked;
    for (std::size_t i = 0; i < kept_.size(); ++i) ranked.emplace_back(rank(i), kept_[i].sample);
    const std::size_t count = std::max<std::size_t>(room_ / 32, 1);
    std::nth_element(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(count) - 1,
                     ranked.end());
    for (std::size_t i = 0; i < count; ++i) evict(places_.at(ranked[i].second));
  }

  void evict(std::size_t place) {
    policy_.evicted(hash_of(kept_[place].sample), kept_[place].usage);
    places_.erase(kept_[place].sample);
    if (place + 1 < kept_.size()) {
      kept_[place] = kept_.back();
      places_[kept_[place].sample] = place;
    }
    kept_.pop_back();
  }

  policy::Policy& policy_;
  const std::size_t room_;
  const Eviction eviction_;
  std::vector<Kept> kept_;
  std::unordered_map<std::uint32_t, std::size_t> places_;
  Random random_{1};
  policy::Tick now_ = 0;
  bool is_full_ = false;
  std::size_t insertions_ = 0;
};

}  // namespace modcache::testing
