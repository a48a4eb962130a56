// SPDX-License-Identifier: Apache-2.0
//
// S3Fifo: a small part for new entries and a main part for those that were used again, as in
// S3-FIFO (Yang et al., SOSP 2023), expressed by ranks instead of queues:
//  - new entries are safe until as many others came as the small part holds;
//  - after that, entries that were never used leave first, and their hashes are remembered: an
//    entry that comes back goes to the main part at once;
//  - in the main part each use, up to three, adds one turn to the entry's life. A turn is the time
//    that an unused entry of that part has to live.
// Where a horizon is set, entries that were not used for that long count as never used.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "policy/ghosts.h"
#include "policy/policy.h"

namespace modcache::policy {

// May be shared by processes; all zeros is a valid start.
struct S3FifoState {
  std::atomic<std::uint64_t> room_entries;
  std::atomic<std::uint32_t> inserts;
  // The ticks at which the newest and the second newest step of insertions ended.
  std::atomic<Tick> step_at;
  std::atomic<Tick> new_since;
  std::atomic<Tick> turn;
  std::atomic<Tick> horizon;  // 0: none
  std::atomic<std::uint32_t> unused;
};

class S3Fifo final : public Policy {
 public:
  // `state` and the memory of `ghosts` outlive this object; `owner`, where given, keeps them alive.
  S3Fifo(S3FifoState& state, Ghosts ghosts, std::shared_ptr<void> owner = nullptr)
      : state_(state), ghosts_(ghosts), owner_(std::move(owner)) {}

  void saw(std::uint64_t, bool, Tick) override {}
  void measured(std::uint64_t entries, std::uint64_t room_entries) override;
  bool admits(std::uint64_t, Tick) override { return true; }
  Usage inserted(std::uint64_t hash, Tick now) override;
  Usage used(Usage usage, Tick now) const override;
  Usage spared(Usage usage, Tick now) const override;
  std::uint32_t rank(Usage usage, Tick now) const override;
  void evicted(std::uint64_t hash, Usage usage, Tick now) override;

  std::uint64_t room_entries() const;
  void set_horizon(Tick horizon) { state_.horizon.store(horizon, std::memory_order_relaxed); }
  // Returns whether the entry was not used for the whole horizon.
  bool is_abandoned(Usage usage, Tick now) const;

 private:
  S3FifoState& state_;
  Ghosts ghosts_;
  const std::shared_ptr<void> owner_;
};

}  // namespace modcache::policy
