// SPDX-License-Identifier: Apache-2.0
//
// Auto: notices by itself which way of keeping entries finds most of what is asked for:
//  - stable: a full tier takes one in a few of what is new. For epochs.
//  - open: as S3Fifo. Where some entries are asked for more often than others.
//  - recent: as Lru. For a set in use that fits and moves on.
// A sample of all lookups goes to a Shadow of each; the one that found clearly more of late
// decides. Before there is evidence: stable. Entries that nobody asked for within more than the
// usual time leave first, so that yesterday's stable part does not stay for ever.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "policy/lru.h"
#include "policy/policy.h"
#include "policy/reuse.h"
#include "policy/s3fifo.h"
#include "policy/shadow.h"
#include "policy/shared_state.h"
#include "policy/stable.h"
#include "policy/way.h"

namespace modcache::policy {

class Auto final : public Policy {
 public:
  explicit Auto(std::shared_ptr<SharedState> state);

  void saw(std::uint64_t hash, bool was_found, Tick now) override;
  void measured(std::uint64_t entries, std::uint64_t room_entries) override;
  bool admits(std::uint64_t hash, Tick now) override;
  Usage inserted(std::uint64_t hash, Tick now) override;
  Usage used(Usage usage, Tick now) const override;
  Usage spared(Usage usage, Tick now) const override;
  std::uint32_t rank(Usage usage, Tick now) const override;
  void evicted(std::uint64_t hash, Usage usage, Tick now) override;

  Way way() const;

 private:
  void simulate(std::uint64_t hash, Tick now);
  // Sets how large a sample is taken.
  void choose_sample(std::uint64_t room_entries);
  void judge();
  void choose_way();
  void choose_horizon();

  const std::shared_ptr<SharedState> owner_;
  AutoState& state_;
  S3Fifo s3fifo_;
  StableGate gate_;
  Reuse reuse_;
  Lru lru_;
  std::array<Shadow, kWays> shadows_;
};

}  // namespace modcache::policy
