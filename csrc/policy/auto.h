// SPDX-License-Identifier: Apache-2.0
//
// Auto: finds out by itself which way of keeping entries has the most hits:
//  - stable: a full tier takes only one in a few of the new entries. For epochs.
//  - open: as S3Fifo. For lookups that ask for some entries more often than for others.
//  - recent: as Lru. For a working set that fits and changes.
// A sample of all lookups goes to a Shadow of each way, and the way that had clearly more hits of
// late decides. Until there is evidence that is "stable". Entries that were not asked for within
// much more than the usual time leave first, so that the stable part of yesterday does not stay for
// ever.
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
  // Chooses which share of the hashes is in the sample, so that the shadows have room for it.
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
