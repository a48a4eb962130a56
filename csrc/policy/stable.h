// SPDX-License-Identifier: Apache-2.0
//
// StableGate: makes a full tier keep a stable part. It admits one in kOneIn new entries, so that an
// entry stays until it is asked for again, however long that takes. On epochs over a set that does
// not fit, no policy can do better. While the entries that leave were abandoned ones, new ones are
// admitted at once in their places. Any thread or process may call it at any time, on the same
// state.
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
