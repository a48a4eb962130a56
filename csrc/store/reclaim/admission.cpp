// SPDX-License-Identifier: Apache-2.0
#include "store/reclaim/admission.h"

namespace modcache::store {
namespace {

// An older count of bytes on disk is no reason to refuse an entry.
constexpr std::int64_t kDiskBytesAgeMs = 50;
// One entry pushes out no more than this part of a full directory.
constexpr std::uint64_t kMostShareOfFull = 2;

}  // namespace

Admission::Room Admission::room_for(const EntryId& id, bool replaces, std::uint64_t size_bytes,
                                    std::uint64_t taken_bytes) {
  // Another process may have made room, or taken it.
  if (budget_.room_bytes(taken_bytes) < size_bytes) budget_.measure_if_older_than(kDiskBytesAgeMs);
  if (!budget_.is_full(size_bytes, taken_bytes, attached_.control().evictions())) {
    return Room::kFree;
  }
  const bool is_too_large = size_bytes > budget_.budget_bytes() / kMostShareOfFull;
  if (is_too_large || !(usage_.admits(id.address) || (replaces && may_have_one(id)))) {
    requests_.ask_if_dead_space(attached_.counted_removals());
    return Room::kNone;
  }
  const std::uint64_t room = budget_.room_bytes(taken_bytes);
  if (room < size_bytes + budget_.segment_bytes() / 4) {
    // The puts before the entry must be written first.
    const bool is_behind = taken_bytes > budget_.segment_bytes();
    if (room < size_bytes && (is_behind || requests_.is_exhausted())) return Room::kNone;
    requests_.ask(size_bytes, true);
  }
  return Room::kOfOthers;
}

// Whether an entry may be there, whose place the new one would take.
bool Admission::may_have_one(const EntryId& id) {
  SharedIndex::Slot slot;
  const auto answer = attached_.index().find(id.address, slot);
  if (answer != SharedIndex::Answer::kUnknown) return answer == SharedIndex::Answer::kFound;
  return !attached_.reader().find(id.context.digest, id.key).is_not_found();
}

}  // namespace modcache::store
