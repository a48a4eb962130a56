// SPDX-License-Identifier: Apache-2.0
#include "store/found/location_map.h"

#include <algorithm>
#include <utility>

#include "store/entry/put.h"

namespace modcache::store {

void LocationMap::forget_all() {
  std::fill(slots_.begin(), slots_.end(), Slot());
  records_ = 0;
  segments_.clear();
  segment_indexes_.clear();
  // Headers stay, so that their pointers do, until there is no room for another.
}

// REQUIRES: no slot refers to one.
void LocationMap::forget_headers() {
  header_indexes_.clear();
  headers_.clear();
  headers_bytes_ = 0;
}

// The counter only grows: a smaller one was read before somebody else read a larger.
void LocationMap::note_removals(std::uint64_t removals) {
  if (removals <= removals_) return;
  if (era_ == kMostEras) forget_all();
  era_ = static_cast<std::uint16_t>(era_ == kMostEras ? 0 : era_ + 1);
  removals_ = removals;
}

SharedHeader LocationMap::intern(std::string_view header) {
  if (header.size() > kMostHeaderBytes) return std::make_shared<const std::string>(header);
  MutexLock lock(mutex_);
  const auto known = header_indexes_.find(header);
  if (known != header_indexes_.end()) return headers_[known->second];
  auto added = std::make_shared<const std::string>(header);
  if (has_room_for(header)) header_index(added);
  return added;
}

bool LocationMap::has_room_for(std::string_view header) const {
  const std::size_t size_bytes = header.size() + kHeaderOverheadBytes;
  return headers_bytes_ + size_bytes <= kMostHeadersBytes || header_indexes_.count(header) != 0;
}

std::uint32_t LocationMap::header_index(const SharedHeader& header) {
  // Mostly it is that of the record before.
  if (last_header_ < headers_.size() && headers_[last_header_] == header) return last_header_;
  const auto index = static_cast<std::uint32_t>(headers_.size());
  const auto [known, is_new] = header_indexes_.emplace(*header, index);
  if (is_new) {
    headers_.push_back(header);
    headers_bytes_ += header->size() + kHeaderOverheadBytes;
  }
  return last_header_ = known->second;
}

std::uint32_t LocationMap::segment_index(std::uint64_t segment) {
  if (last_segment_ < segments_.size() && segments_[last_segment_] == segment) return last_segment_;
  const auto index = static_cast<std::uint32_t>(segments_.size());
  const auto [known, is_new] = segment_indexes_.emplace(segment, index);
  if (is_new) segments_.push_back(segment);
  return last_segment_ = known->second;
}

void LocationMap::grow() {
  std::vector<Slot> old =
      std::exchange(slots_, std::vector<Slot>(slots_.empty() ? kLeastSlots : 2 * slots_.size()));
  for (const Slot& slot : old) {
    if (slot.sequence != 0) slot_for(slot.address) = slot;
  }
}

void LocationMap::add_one(const NewRecord& added) {
  if (added.record.sequence == 0) return;  // none has it; here it marks a free slot
  const KnownRecord& record = added.record;
  if (record.header->size() > kMostHeaderBytes || record.payload_size_bytes > kMostPayloadBytes) {
    remove_one(added.address);  // what was known there is older
    return;
  }
  if (!has_room_for(*record.header)) {
    forget_all();
    forget_headers();
  }
  if ((needs_more_slots() && slots_.size() >= kMostSlots) || segments_.size() >= kMostSegments) {
    forget_all();
  }
  // Also after all was forgotten: there may never have been a slot.
  if (needs_more_slots()) grow();
  Slot& slot = slot_for(added.address);
  if (slot.sequence == 0) ++records_;
  slot.address = added.address;
  slot.sequence = record.sequence;
  slot.offset = record.offset;
  slot.run_us = record.run_us;
  slot.payload_checksum = record.payload_checksum;
  slot.payload_size_bytes = record.payload_size_bytes;
  slot.payload_is_verified = record.payload_is_verified ? 1 : 0;
  slot.era = era_;
  slot.header = header_index(record.header);
  slot.own_part_bytes = record.own_part_bytes;
  slot.segment = segment_index(record.segment);
}

void LocationMap::add_all(const std::vector<NewRecord>& records, std::uint64_t removals) {
  MutexLock lock(mutex_);
  note_removals(removals);
  if (removals == 0 || removals != removals_) return;
  for (const NewRecord& record : records) add_one(record);
}

void LocationMap::remove(const Digest128& address) {
  MutexLock lock(mutex_);
  remove_one(address);
}

void LocationMap::remove_one(const Digest128& address) {
  if (slots_.empty()) return;
  Slot& slot = slot_for(address);
  if (slot.sequence == 0) return;
  --records_;
  // Records that the removed one had pushed on move up, so that no search ends too early.
  auto hole = static_cast<std::size_t>(&slot - slots_.data());
  for (std::size_t i = next(hole); slots_[i].sequence != 0; i = next(i)) {
    const std::size_t mask = slots_.size() - 1;
    const std::size_t distance = (i - home(slots_[i].address)) & mask;
    if (distance < ((i - hole) & mask)) continue;
    slots_[hole] = slots_[i];
    hole = i;
  }
  slots_[hole] = Slot();
}

void LocationMap::note_verified(const std::vector<Verified>& records) {
  MutexLock lock(mutex_);
  if (records_ == 0) return;
  for (const Verified& record : records) {
    Slot& slot = slot_for(record.address);
    if (slot.sequence == record.sequence && segments_[slot.segment] == record.segment) {
      slot.payload_is_verified = 1;
    }
  }
}

}  // namespace modcache::store
