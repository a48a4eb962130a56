// SPDX-License-Identifier: Apache-2.0
#include "policy/auto.h"

#include <algorithm>
#include <utility>

#include "policy/age.h"

namespace modcache::policy {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// After so many lookups of the sample, older ones count half.
constexpr std::uint32_t kRemembered = 16384;
constexpr std::uint32_t kJudgedEvery = 256;
constexpr std::uint32_t kEvidence = 1024;
// Another way takes over when it has more hits by one in so many lookups.
constexpr std::uint32_t kLead = 64;
// The horizon while too few reuses were seen: so many lookups per entry that there is room for.
constexpr std::uint64_t kHorizonOfRoom = 32;

}  // namespace

Auto::Auto(std::shared_ptr<SharedState> state)
    : owner_(std::move(state)),
      state_(owner_->automatic),
      s3fifo_(owner_->s3fifo, Ghosts(owner_->ghosts.data(), owner_->ghosts.size())),
      gate_(state_.gate),
      reuse_(state_.reuse),
      shadows_{Shadow(state_.shadows[0], Way::kStable), Shadow(state_.shadows[1], Way::kOpen),
               Shadow(state_.shadows[2], Way::kRecent)} {}

Way Auto::way() const { return static_cast<Way>(state_.way.load(kRelaxed) % kWays); }

void Auto::saw(std::uint64_t hash, bool, Tick now) {
  if (hash < state_.sample_end.load(kRelaxed)) simulate(hash, now);
}

void Auto::simulate(std::uint64_t hash, Tick now) {
  const std::uint32_t shift = std::min(state_.sample_shift.load(kRelaxed), 63U);
  const std::uint64_t room =
      std::clamp<std::uint64_t>(s3fifo_.room_entries() >> shift, 1, Shadow::kMostRoom);
  for (std::size_t i = 0; i < kWays; ++i) {
    if (shadows_[i].find_or_insert(hash, room, now)) state_.found[i].fetch_add(1, kRelaxed);
  }
  reuse_.saw(hash, now);
  if (state_.lookups.fetch_add(1, kRelaxed) % kJudgedEvery == kJudgedEvery - 1) judge();
}

void Auto::judge() {
  choose_way();
  choose_horizon();
  for (Shadow& shadow : shadows_) shadow.recount();
}

void Auto::choose_way() {
  const std::uint32_t lookups = state_.lookups.load(kRelaxed);
  const auto ours = static_cast<std::size_t>(way());
  std::size_t best = ours;
  for (std::size_t i = 0; i < kWays; ++i) {
    if (state_.found[i].load(kRelaxed) > state_.found[best].load(kRelaxed)) best = i;
  }
  if (lookups >= kEvidence &&
      state_.found[best].load(kRelaxed) > state_.found[ours].load(kRelaxed) + lookups / kLead) {
    state_.way.store(static_cast<std::uint32_t>(best), kRelaxed);
  }
  if (lookups < kRemembered) return;
  state_.lookups.store(lookups / 2, kRelaxed);
  for (auto& found : state_.found) found.store(found.load(kRelaxed) / 2, kRelaxed);
}

void Auto::choose_horizon() {
  Tick horizon = reuse_.horizon();
  if (horizon == 0) {
    horizon = static_cast<Tick>(
        std::min<std::uint64_t>(s3fifo_.room_entries() * kHorizonOfRoom, kMostAge / 2));
  }
  s3fifo_.set_horizon(horizon);
  for (Shadow& shadow : shadows_) shadow.set_horizon(horizon);
}

void Auto::measured(std::uint64_t entries, std::uint64_t room_entries) {
  s3fifo_.measured(entries, room_entries);
  const std::uint32_t shift = std::min(state_.sample_shift.load(kRelaxed), 63U);
  const bool is_chosen = state_.sample_end.load(kRelaxed) != 0;
  const std::uint64_t room = room_entries >> shift;
  const bool is_too_small = shift > 0 && room < Shadow::kMostRoom / 4;
  // A new sample clears the shadows and their evidence, so one is kept while its size will do.
  if (room_entries != 0 && (!is_chosen || room > Shadow::kMostRoom || is_too_small)) {
    choose_sample(room_entries);
  }
}

void Auto::choose_sample(std::uint64_t room_entries) {
  std::uint32_t shift = 0;
  // Leaves the tier room to grow before the next choice.
  while (room_entries >> shift > Shadow::kMostRoom * 3 / 4) ++shift;
  state_.sample_shift.store(shift, kRelaxed);
  state_.sample_end.store(~std::uint64_t{0} >> shift, kRelaxed);
  for (Shadow& shadow : shadows_) shadow.clear();
}

bool Auto::admits(std::uint64_t hash, Tick) { return way() != Way::kStable || gate_.admits(hash); }

Usage Auto::inserted(std::uint64_t hash, Tick now) { return s3fifo_.inserted(hash, now); }
Usage Auto::used(Usage usage, Tick now) const { return s3fifo_.used(usage, now); }
Usage Auto::spared(Usage usage, Tick now) const { return s3fifo_.spared(usage, now); }
std::uint32_t Auto::rank(Usage usage, Tick now) const {
  return way() == Way::kRecent ? lru_.rank(usage, now) : s3fifo_.rank(usage, now);
}

void Auto::evicted(std::uint64_t hash, Usage usage, Tick now) {
  gate_.evicted(s3fifo_.is_abandoned(usage, now), s3fifo_.room_entries());
  s3fifo_.evicted(hash, usage, now);
}

}  // namespace modcache::policy
