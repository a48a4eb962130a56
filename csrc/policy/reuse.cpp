// SPDX-License-Identifier: Apache-2.0
#include "policy/reuse.h"

#include <algorithm>

#include "policy/age.h"

namespace modcache::policy {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr std::size_t kWays = 8;
constexpr std::uint32_t kRemembered = 4096;  // reuses, after which older ones count half
constexpr std::uint32_t kEvidence = 128;

// Maps an interval to its step. The steps begin at 0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20,
// ...
std::size_t step_of(Tick interval) {
  if (interval < 4) return interval;
  const int log = 31 - __builtin_clz(interval);
  return static_cast<std::size_t>(log - 1) * 4 + (interval >> (log - 2) & 3);
}

Tick end_of(std::size_t step) {
  if (step < 4) return static_cast<Tick>(step) + 1;
  const std::uint64_t end = std::uint64_t{5 + step % 4} << (step / 4 - 1);
  return static_cast<Tick>(std::min<std::uint64_t>(end, kMostAge));
}

}  // namespace

void Reuse::saw(std::uint64_t hash, Tick now) {
  const std::size_t begin = hash % (ReuseState::kSlots / kWays) * kWays;
  const std::uint64_t mark = hash >> 16 << 32 | std::uint64_t{1} << 32;
  const std::uint64_t entry = mark | now;
  std::size_t oldest = begin;
  Tick oldest_age = 0;
  for (std::size_t i = begin; i < begin + kWays; ++i) {
    const std::uint64_t slot = state_.last_seen[i].load(kRelaxed);
    const Tick age = now - static_cast<Tick>(slot);
    if (slot >> 32 == mark >> 32) {
      state_.last_seen[i].store(entry, kRelaxed);
      count(age);
      return;
    }
    // The hash seen longest ago makes room, as its reuse would count least.
    if (slot == 0 || age >= oldest_age) {
      oldest = i;
      oldest_age = slot == 0 ? ~Tick{0} : age;
    }
  }
  state_.last_seen[oldest].store(entry, kRelaxed);
}

void Reuse::count(Tick interval) {
  const std::size_t step = std::min(step_of(interval), ReuseState::kSteps - 1);
  state_.times[step].fetch_add(1, kRelaxed);
  if (state_.counted.fetch_add(1, kRelaxed) + 1 < kRemembered) return;
  std::uint32_t left = 0;
  for (auto& times : state_.times) {
    const std::uint32_t half = times.load(kRelaxed) / 2;
    times.store(half, kRelaxed);
    left += half;
  }
  state_.counted.store(left, kRelaxed);
}

Tick Reuse::horizon() const {
  std::uint64_t total = 0;
  for (const auto& times : state_.times) total += times.load(kRelaxed);
  if (total < kEvidence) return 0;
  std::uint64_t below = 0;
  for (std::size_t step = 0; step < state_.times.size(); ++step) {
    below += state_.times[step].load(kRelaxed);
    if (below * 100 >= total * 98) return std::min<Tick>(end_of(step), kMostAge / 4) / 2 * 3;
  }
  return 0;
}

}  // namespace modcache::policy
