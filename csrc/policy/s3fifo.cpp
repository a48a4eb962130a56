// SPDX-License-Identifier: Apache-2.0
#include "policy/s3fifo.h"

#include <algorithm>

#include "policy/age.h"

namespace modcache::policy {
namespace {

constexpr std::uint8_t kMain = 1;  // a bit of Usage::state
constexpr std::uint8_t kMostUses = 3;
// The small part holds 1 / kStepsOfRoom of the room, in steps: a new entry is safe for one to two
// steps of that many insertions.
constexpr std::uint64_t kStepsOfRoom = 40;

// Ranges of ranks: abandoned and unused entries from 0, then the main part, then new entries.
constexpr std::uint32_t kOfMain = 1U << 30;
constexpr std::uint32_t kOfNew = 3U << 30;

constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace

std::uint64_t S3Fifo::room_entries() const { return state_.room_entries.load(kRelaxed); }

void S3Fifo::measured(std::uint64_t, std::uint64_t room_entries) {
  if (this->room_entries() != room_entries) state_.room_entries.store(room_entries, kRelaxed);
}

Usage S3Fifo::inserted(std::uint64_t hash, Tick now) {
  const std::uint64_t room = room_entries();
  const auto step = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(room / kStepsOfRoom, std::uint64_t{1} << 30));
  if (step == 0) {  // the small part has room for this entry alone
    state_.new_since.store(now, kRelaxed);
  } else if (state_.inserts.fetch_add(1, kRelaxed) % step == 0) {
    state_.new_since.store(state_.step_at.load(kRelaxed), kRelaxed);
    state_.step_at.store(now, kRelaxed);
  }
  return {now, 0, ghosts_.take(hash, room) ? kMain : std::uint8_t{0}, 0};
}

Usage S3Fifo::used(Usage usage, Tick now) const {
  if ((usage.state & kMain) == 0) {
    // The first use only moves a new entry into the main part.
    usage.uses = 0;
  } else {
    const Tick turn = state_.turn.load(kRelaxed);
    const Tick age = age_of(usage, now);
    usage.uses = std::min(usage.uses, kMostUses);
    // Each turn since the last use has used up one earlier use.
    if (turn != 0 && age >= turn) {
      usage.uses -= static_cast<std::uint8_t>(std::min<Tick>(usage.uses, age / turn));
    }
    if (usage.uses < kMostUses) ++usage.uses;
  }
  usage.state = kMain;
  usage.used_at = now;
  return usage;
}

Usage S3Fifo::spared(Usage usage, Tick now) const { return with_bounded_age(usage, now); }

bool S3Fifo::is_abandoned(Usage usage, Tick now) const {
  const Tick horizon = state_.horizon.load(kRelaxed);
  return horizon != 0 && age_of(usage, now) > horizon;
}

std::uint32_t S3Fifo::rank(Usage usage, Tick now) const {
  const std::uint32_t age = std::min<Tick>(age_of(usage, now), kOfMain - 1);
  const std::uint32_t youth = kOfMain - 1 - age;
  if ((usage.state & kMain) == 0) {
    return is_before(usage.used_at, state_.new_since.load(kRelaxed)) ? youth : kOfNew + youth;
  }
  if (is_abandoned(usage, now)) return youth;
  const std::uint64_t worth =
      std::uint64_t{std::min(usage.uses, kMostUses)} * state_.turn.load(kRelaxed);
  return kOfMain +
         static_cast<std::uint32_t>(std::min<std::uint64_t>(youth + worth, kOfNew - kOfMain - 1));
}

void S3Fifo::evicted(std::uint64_t hash, Usage usage, Tick now) {
  if ((usage.state & kMain) == 0) {
    ghosts_.add(hash, room_entries());
    return;
  }
  if (is_abandoned(usage, now)) return;
  const std::int64_t turn = state_.turn.load(kRelaxed);
  const std::int64_t lived = std::max<std::int64_t>(
      std::int64_t{age_of(usage, now)} - std::min(usage.uses, kMostUses) * turn, 0);
  // A moving average, since evictions vary and the turn must follow a change of the workload.
  const std::int64_t next = turn == 0 ? lived : turn + (lived - turn) / 16;
  state_.turn.store(static_cast<Tick>(std::min<std::int64_t>(next, kMostAge)), kRelaxed);
}

}  // namespace modcache::policy
