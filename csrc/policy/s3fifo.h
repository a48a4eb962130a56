// SPDX-License-Identifier: Apache-2.0
//
// S3Fifo: a small part for what is new, a main part for what was used again, in the manner of
// S3-FIFO (Yang et al., SOSP 2023), expressed by ranks instead of queues:
//  - new entries are left alone for a while: until as many others came as the small part holds;
//  - after that those that were never used leave first, and their hashes are remembered: one that
//    comes back goes to the main part at once;
//  - in the main part each of up to three uses is worth one turn: the time that an unused entry of
//    that part has to live.
// Optionally entries that were not used for a whole horizon count as never used.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "policy/ghosts.h"
#include "policy/policy.h"

namespace modcache::policy {

// Perhaps shared by processes; zeros are a beginning.
struct S3FifoState {
  std::atomic<std::uint64_t> room_entries;
  std::atomic<std::uint32_t> inserts;
  // When the newest and the second newest step of insertions ended.
  std::atomic<Tick> step_at;
  std::atomic<Tick> new_since;
  std::atomic<Tick> turn;
  std::atomic<Tick> horizon;  // 0: none
  std::atomic<std::uint32_t> unused;
};

class S3Fifo final : public Policy {
 public:
  // `state` and the memory of `ghosts` outlive this; `owner` makes sure of that where it is given.
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
  // Not used for the whole horizon.
  bool is_abandoned(Usage usage, Tick now) const;

 private:
  S3FifoState& state_;
  Ghosts ghosts_;
  const std::shared_ptr<void> owner_;
};

}  // namespace modcache::policy
