// SPDX-License-Identifier: Apache-2.0
//
// Reuse: measures after how many lookups entries are asked for again, whether or not a tier has
// them, on a sample of hashes. An entry that was not asked for in more than that time will perhaps
// never be. Any thread or process may call it at any time, on the same state.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "policy/policy.h"

namespace modcache::policy {

struct ReuseState {
  static constexpr std::size_t kSlots = 8192;
  static constexpr std::size_t kSteps = 128;  // four for each power of two

  std::array<std::atomic<std::uint64_t>, kSlots> last_seen;  // a mark of the hash, and a tick
  std::array<std::atomic<std::uint32_t>, kSteps> times;
  std::atomic<std::uint32_t> counted;
};

class Reuse {
 public:
  explicit Reuse(ReuseState& state) : state_(state) {}

  void saw(std::uint64_t hash, Tick now);
  // Returns 1.5 times the interval within which 98 of 100 reuses came; 0 while too few were seen.
  Tick horizon() const;

 private:
  void count(Tick interval);

  ReuseState& state_;
};

}  // namespace modcache::policy
