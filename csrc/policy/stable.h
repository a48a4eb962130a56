// SPDX-License-Identifier: Apache-2.0
//
// StableGate: how a full tier keeps a stable part. Of new entries it lets in one in kOneIn, so that
// what is there stays until it is asked for again, however long that takes; on epochs over more
// than fits that is as good as anything can be. As long as those that leave had been abandoned,
// others may come in their places at once.
// Any thread or process may call it at any time, on the same state.
#pragma once

#include <atomic>
#include <cstdint>

namespace modcache::policy {

struct StableGateState {
  std::atomic<std::uint32_t> asked;
  std::atomic<std::uint32_t> vacancies;
};

class StableGate {
 public:
  static constexpr std::uint32_t kOneIn = 32;

  explicit StableGate(StableGateState& state) : state_(state) {}

  bool admits(std::uint64_t hash);
  void evicted(bool was_abandoned, std::uint64_t room_entries);

 private:
  StableGateState& state_;
};

}  // namespace modcache::policy
