// SPDX-License-Identifier: Apache-2.0
//
// LocationMap: the records that this process has met, so that the next find() needs no SQL and no
// second check of what was checked. When any process removed or replaced anything, each is asked
// after before it is believed again. Bounded: it is a copy of what the index knows, in every
// process. Records with a header above kMostHeaderBytes are not kept. Thread-safe.
//
// One open-addressing table with a cache line for each record, since a batch looks up hundreds.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "base/mutex.h"
#include "store/entry/entry_id.h"
#include "store/entry/own_part.h"
#include "store/entry/put.h"

namespace modcache::store {

// A record whose head this process has read and checked.
struct KnownRecord {
  std::uint64_t segment = 0;
  std::uint64_t offset = 0;
  Sequence sequence = 0;
  std::int64_t run_us = 0;
  std::uint64_t payload_size_bytes = 0;
  std::uint64_t payload_checksum = 0;
  SharedHeader header;  // the shared part, as intern() gave it
  bool payload_is_verified = false;
  std::uint8_t own_part_bytes = 0;  // of the own part (own_part.h), which lies before it
};

class LocationMap {
 public:
  // Such headers are rare, and seldom two are the same: the index is asked for their records.
  static constexpr std::size_t kMostHeaderBytes = 4 << 10;
  // For all headers together, with what the tables take for each.
  static constexpr std::size_t kMostHeadersBytes = 16 << 20;

  // The parts of a record that a lookup sees. Borrowed for the time of the visit.
  struct Visited {
    std::uint64_t segment;
    std::uint64_t offset;
    Sequence sequence;
    std::int64_t run_us;
    std::uint64_t payload_size_bytes;
    std::uint64_t payload_checksum;
    const SharedHeader& header;
    bool payload_is_verified;
    std::uint8_t own_part_bytes;
  };

  // Whether this is still where an entry is; asked of what was known before something was removed.
  // False: it is not, or nobody can tell. It must not call back.
  using IsStillThere = std::function<bool(const Digest128& address, std::uint64_t segment,
                                          std::uint64_t offset, Sequence sequence)>;
  static bool is_unknown(const Digest128&, std::uint64_t, std::uint64_t, Sequence) { return false; }

  // Calls visit(i, const Visited&) for each address that is known, under one lock; the visitor
  // must not call back. `removals` is the control page's counter, read before the question is
  // asked. 0: it could not be read, so nothing is known.
  template <typename Visit>
  void find_all(std::span<const Digest128> addresses, std::uint64_t removals, Visit visit,
                const IsStillThere& is_still_there = is_unknown);

  struct NewRecord {
    Digest128 address;
    KnownRecord record;
  };
  // `removals` was read before the index was asked for the locations.
  void add_all(const std::vector<NewRecord>& records, std::uint64_t removals);
  void add(const Digest128& address, const KnownRecord& record, std::uint64_t removals) {
    add_all({{address, record}}, removals);
  }
  void remove(const Digest128& address);

  struct Verified {
    Digest128 address;
    std::uint64_t segment;  // a record keeps its sequence when it moves to another
    Sequence sequence;
  };
  // The payloads of these were found whole. Other records of these addresses are passed over.
  void note_verified(const std::vector<Verified>& records);

  // The one copy of this text; where it is above kMostHeaderBytes or there is no room for one more
  // header, a copy of the caller's own. Forgets no record: puts ask for this as well.
  SharedHeader intern(std::string_view header);

 private:
  static constexpr std::size_t kLeastSlots = 1 << 10;
  static constexpr std::size_t kMostSlots = 1 << 19;  // 32 MiB, for 393,216 records
  // The memory that one header takes besides its text: string, control block, hash node and bucket,
  // table entry.
  static constexpr std::size_t kHeaderOverheadBytes = 160;
  static constexpr std::size_t kMostSegments = 1 << 16;
  // How many lookups ahead the table's lines are fetched.
  static constexpr std::size_t kAhead = 8;

  struct alignas(64) Slot {
    Digest128 address;
    Sequence sequence = 0;  // 0: free
    std::uint64_t offset = 0;
    std::int64_t run_us = 0;
    std::uint64_t payload_checksum = 0;
    std::uint64_t payload_size_bytes : 47;
    std::uint64_t payload_is_verified : 1;
    std::uint64_t era : 16;
    std::uint32_t header : 26;  // index into headers_
    std::uint32_t own_part_bytes : 6;
    std::uint32_t segment = 0;  // index into segments_
    Slot() : payload_size_bytes(0), payload_is_verified(0), era(0), header(0), own_part_bytes(0) {}
  };
  static_assert(sizeof(Slot) == 64);
  static_assert(kMostHeadersBytes / kHeaderOverheadBytes < (1 << 26));
  static_assert(kMostOwnPartBytes < (1 << 6));

  static constexpr std::uint64_t kMostPayloadBytes = (std::uint64_t{1} << 47) - 1;
  static constexpr std::uint16_t kMostEras = 0xffff;

  void note_removals(std::uint64_t removals) MODCACHE_REQUIRES(mutex_);
  void forget_all() MODCACHE_REQUIRES(mutex_);
  void forget_headers() MODCACHE_REQUIRES(mutex_);
  std::size_t home(const Digest128& address) const MODCACHE_REQUIRES(mutex_) {
    return address.low & (slots_.size() - 1);
  }
  // The slot that has `address`, or the free one where it belongs. REQUIRES: there are slots.
  Slot& slot_for(const Digest128& address) MODCACHE_REQUIRES(mutex_) {
    std::size_t i = home(address);
    while (slots_[i].sequence != 0 && slots_[i].address != address) i = next(i);
    return slots_[i];
  }
  std::size_t next(std::size_t i) const MODCACHE_REQUIRES(mutex_) {
    return (i + 1) & (slots_.size() - 1);
  }
  void add_one(const NewRecord& added) MODCACHE_REQUIRES(mutex_);
  void remove_one(const Digest128& address) MODCACHE_REQUIRES(mutex_);
  bool needs_more_slots() const MODCACHE_REQUIRES(mutex_) {
    return 4 * (records_ + 1) > 3 * slots_.size();
  }
  void grow() MODCACHE_REQUIRES(mutex_);
  bool has_room_for(std::string_view header) const MODCACHE_REQUIRES(mutex_);
  // REQUIRES: has_room_for(*header).
  std::uint32_t header_index(const SharedHeader& header) MODCACHE_REQUIRES(mutex_);
  std::uint32_t segment_index(std::uint64_t segment) MODCACHE_REQUIRES(mutex_);

  Mutex mutex_;
  std::uint64_t removals_ MODCACHE_GUARDED_BY(mutex_) = 0;
  // The era of records that were found since the counter was removals_.
  std::uint16_t era_ MODCACHE_GUARDED_BY(mutex_) = 0;
  std::vector<Slot> slots_ MODCACHE_GUARDED_BY(mutex_);  // a power of two, or none
  std::size_t records_ MODCACHE_GUARDED_BY(mutex_) = 0;
  std::vector<SharedHeader> headers_ MODCACHE_GUARDED_BY(mutex_);
  std::unordered_map<std::string_view, std::uint32_t> header_indexes_ MODCACHE_GUARDED_BY(mutex_);
  std::size_t headers_bytes_ MODCACHE_GUARDED_BY(mutex_) = 0;
  std::uint32_t last_header_ MODCACHE_GUARDED_BY(mutex_) = 0;  // that was looked up
  std::vector<std::uint64_t> segments_ MODCACHE_GUARDED_BY(mutex_);
  std::unordered_map<std::uint64_t, std::uint32_t> segment_indexes_ MODCACHE_GUARDED_BY(mutex_);
  std::uint32_t last_segment_ MODCACHE_GUARDED_BY(mutex_) = 0;  // that was looked up
};

template <typename Visit>
void LocationMap::find_all(std::span<const Digest128> addresses, std::uint64_t removals,
                           Visit visit, const IsStillThere& is_still_there) {
  if (removals == 0) return;
  MutexLock lock(mutex_);
  note_removals(removals);
  if (records_ == 0) return;
  const std::size_t count = addresses.size();
  for (std::size_t i = 0; i < count && i < kAhead; ++i) {
    __builtin_prefetch(&slots_[home(addresses[i])]);
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) __builtin_prefetch(&slots_[home(addresses[i + kAhead])]);
    Slot& slot = slot_for(addresses[i]);
    if (slot.sequence == 0) continue;
    if (slot.era != era_) {
      if (!is_still_there(slot.address, segments_[slot.segment], slot.offset, slot.sequence)) {
        continue;
      }
      slot.era = era_;
    }
    visit(i,
          Visited{segments_[slot.segment], slot.offset, slot.sequence, slot.run_us,
                  slot.payload_size_bytes, slot.payload_checksum, headers_[slot.header],
                  slot.payload_is_verified != 0, static_cast<std::uint8_t>(slot.own_part_bytes)});
  }
}

}  // namespace modcache::store
