// SPDX-License-Identifier: Apache-2.0
#include "policy/stable.h"

#include <algorithm>

namespace modcache::policy {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace

bool StableGate::admits(std::uint64_t hash) {
  const std::uint32_t vacancies = state_.vacancies.load(kRelaxed);
  if (vacancies > 0) {
    state_.vacancies.store(vacancies - 1, kRelaxed);
    return true;
  }
  // Pseudo-random, so that no order of keys can make it always admit the same ones.
  const std::uint64_t asked = state_.asked.fetch_add(1, kRelaxed);
  return ((hash ^ (asked * 0x9e3779b97f4a7c15U)) * 0xd6e8feb86659fd93U >> 32) % kOneIn == 0;
}

// Each abandoned entry makes room for two: the second one tests whether more are abandoned.
void StableGate::evicted(bool was_abandoned, std::uint64_t room_entries) {
  const std::uint32_t vacancies = state_.vacancies.load(kRelaxed);
  if (!was_abandoned) {
    if (vacancies > 0) state_.vacancies.store(vacancies / 2, kRelaxed);
    return;
  }
  const auto most = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(room_entries / 8, 2, std::uint64_t{1} << 20));
  state_.vacancies.store(std::min(vacancies + 2, most), kRelaxed);
}

}  // namespace modcache::policy
