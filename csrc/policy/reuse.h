// SPDX-License-Identifier: Apache-2.0
//
// Reuse: after how long entries are asked for again, whether or not a tier has them, from the last
// lookups of a sample of hashes. Longer than nearly all of these means: perhaps never again.
// Any thread or process may call it at any time, on the same state.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "policy/policy.h"

namespace modcache::policy {

struct ReuseState {
  static constexpr std::size_t kSlots = 8192;
  static constexpr std::size_t kSteps = 128;  // four for each power of two

  std::array<std::atomic<std::uint64_t>, kSlots> last_seen;  // mark of a hash, and a tick
  std::array<std::atomic<std::uint32_t>, kSteps> times;
  std::atomic<std::uint32_t> counted;
};

class Reuse {
 public:
  explicit Reuse(ReuseState& state) : state_(state) {}

  void saw(std::uint64_t hash, Tick now);
  // Half as much again as 98 of 100 reuses needed at most; 0 while too few were seen.
  Tick horizon() const;

 private:
  void count(Tick interval);

  ReuseState& state_;
};

}  // namespace modcache::policy
