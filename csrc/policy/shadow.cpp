// SPDX-License-Identifier: Apache-2.0
#include "policy/shadow.h"

#include <cstring>

namespace modcache::policy {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr std::size_t kPlaces = 16;
constexpr std::size_t kCompared = 16;

std::uint64_t packed(Usage usage) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &usage, sizeof bits);
  return bits;
}

Usage unpacked(std::uint64_t bits) {
  Usage usage;
  std::memcpy(static_cast<void*>(&usage), &bits, sizeof usage);
  return usage;
}

std::size_t first_place(std::uint64_t hash) {
  return hash % (ShadowState::kSlots / kPlaces) * kPlaces;
}

}  // namespace

Shadow::Shadow(ShadowState& state, Way way)
    : state_(state),
      s3fifo_(state.s3fifo, Ghosts(state.ghosts.data(), state.ghosts.size())),
      gate_(state.gate),
      way_(way) {}

bool Shadow::find_or_insert(std::uint64_t hash, std::uint64_t room_entries, Tick now) {
  if (hash == 0) hash = 1;  // 0 marks an empty slot
  s3fifo_.measured(0, room_entries);
  const std::size_t begin = first_place(hash);
  for (std::size_t i = begin; i < begin + kPlaces; ++i) {
    Slot& slot = state_.slots[i];
    if (slot.hash.load(kRelaxed) != hash) continue;
    const Usage usage = unpacked(slot.usage.load(kRelaxed));
    slot.usage.store(packed(s3fifo_.used(usage, now)), kRelaxed);
    return true;
  }
  if (state_.entries.load(kRelaxed) >= room_entries) {
    if (way_ == Way::kStable && !gate_.admits(hash)) return false;
    // Evict up to two, so that the shadow also shrinks when its room does.
    evict_one(now);
    if (state_.entries.load(kRelaxed) >= room_entries) evict_one(now);
  }
  insert(hash, now);
  return false;
}

std::uint64_t Shadow::next_random() {
  std::uint64_t random = state_.random.fetch_add(0x9e3779b97f4a7c15U, kRelaxed);
  random = (random ^ (random >> 30)) * 0xbf58476d1ce4e5b9U;
  return random ^ (random >> 27);
}

std::uint32_t Shadow::rank(const Slot& slot, Tick now) const {
  const Usage usage = unpacked(slot.usage.load(kRelaxed));
  return way_ == Way::kRecent ? lru_.rank(usage, now) : s3fifo_.rank(usage, now);
}

// Evicts the entry with the smallest rank among kCompared occupied slots, drawn at random in runs
// of four.
void Shadow::evict_one(Tick now) {
  Slot* worst = nullptr;
  std::uint32_t worst_rank = 0;
  std::size_t compared = 0;
  std::uint64_t random = next_random();
  for (std::size_t look = 0; look < ShadowState::kSlots && compared < kCompared; ++look) {
    if (look % 4 == 0) random = random * 0xd1342543de82ef95U + 1;
    Slot& slot = state_.slots[((random >> 40) + look % 4) % ShadowState::kSlots];
    if (slot.hash.load(kRelaxed) == 0) continue;
    ++compared;
    const std::uint32_t rank = this->rank(slot, now);
    if (worst != nullptr && rank >= worst_rank) continue;
    worst = &slot;
    worst_rank = rank;
  }
  if (worst != nullptr) evict(*worst, now);
}

void Shadow::evict(Slot& slot, Tick now) {
  const Usage usage = unpacked(slot.usage.load(kRelaxed));
  const std::uint64_t hash = slot.hash.exchange(0, kRelaxed);
  if (hash == 0) return;
  gate_.evicted(s3fifo_.is_abandoned(usage, now), s3fifo_.room_entries());
  s3fifo_.evicted(hash, usage, now);
  if (state_.entries.load(kRelaxed) > 0) state_.entries.fetch_sub(1, kRelaxed);
}

void Shadow::insert(std::uint64_t hash, Tick now) {
  const std::size_t begin = first_place(hash);
  Slot* target = &state_.slots[begin];
  std::uint32_t worst_rank = ~std::uint32_t{0};
  for (std::size_t i = begin; i < begin + kPlaces; ++i) {
    Slot& slot = state_.slots[i];
    if (slot.hash.load(kRelaxed) == 0) {
      target = &slot;
      break;
    }
    const std::uint32_t rank = this->rank(slot, now);
    if (rank >= worst_rank) continue;
    target = &slot;
    worst_rank = rank;
  }
  evict(*target, now);
  target->usage.store(packed(s3fifo_.inserted(hash, now)), kRelaxed);
  target->hash.store(hash, kRelaxed);
  state_.entries.fetch_add(1, kRelaxed);
}

void Shadow::clear() {
  for (Slot& slot : state_.slots) slot.hash.store(0, kRelaxed);
  state_.entries.store(0, kRelaxed);
}

void Shadow::recount() {
  std::uint64_t entries = 0;
  for (const Slot& slot : state_.slots) entries += slot.hash.load(kRelaxed) != 0 ? 1 : 0;
  state_.entries.store(entries, kRelaxed);
}

}  // namespace modcache::policy
