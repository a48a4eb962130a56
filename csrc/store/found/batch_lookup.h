// SPDX-License-Identifier: Apache-2.0
//
// BatchLookup: one Store::find_all() in progress. It fills a FoundEntries from what its owner
// brings: queued puts, the records this process knows, and rows of the index. Every segment is
// opened, measured and mapped once, not once for each entry in it.
//
// Used by one thread, for one batch.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/one_or_many.h"
#include "base/result.h"
#include "store/entry/entry_id.h"
#include "store/entry/put.h"
#include "store/found/found_entries.h"
#include "store/found/location_map.h"
#include "store/queue/outdated_entries.h"
#include "store/queue/write_queue.h"
#include "store/segment/location.h"
#include "store/segment/record.h"
#include "store/segment/segment_reader.h"

namespace modcache::store {

class BatchLookup {
 public:
  // `readers`, and what `ids` borrows, must outlive the object.
  BatchLookup(const EntryIds& ids, SegmentReaders& readers, std::shared_ptr<LocationMap> locations);

  std::span<const Digest128> addresses() const { return found_.addresses_; }
  // In ascending order.
  std::vector<std::size_t> missing() const;

  void take_queued(std::size_t i, QueuedPutPtr put);

  // Takes all that this process knows. Known records that are not (or no longer) those of the
  // keys are forgotten and stay missing.
  void take_known(std::uint64_t removals,
                  const LocationMap::IsStillThere& is_still_there = LocationMap::is_unknown);

  // A hint: the record at this place will soon be taken.
  void expect_stored(std::uint64_t segment, std::uint64_t offset);
  // Takes what the index says of key i. kCorruption: the record there is not that of the key.
  Status take_stored(std::size_t i, const Location& location);
  // Takes what the shared index says of key i; else nothing is changed.
  bool take_at(std::size_t i, std::uint64_t segment, std::uint64_t offset, Sequence sequence);

  // Entries that were stored before then are not found.
  void pass_over_older(std::int64_t stored_since_us);

  void pass_over_outdated(const OutdatedEntries& outdated);

  void fail(std::size_t i, Sequence sequence, Status status);
  void fail_index(Status status) { found_.index_status_ = std::move(status); }

  // `removals` was read before the index was asked.
  FoundEntries finish(std::uint64_t removals) &&;

 private:
  using Row = FoundEntries::Row;
  using Segment = FoundEntries::Segment;

  bool has_other_sequence(const Row& row) const;
  bool take_if_still_there(Row& row, std::string_view key);
  static void take_own_part(Row& row, const char* part, std::size_t size_bytes);
  void keep_own_part(Row& row, std::string_view part);
  Status append(const Segment& segment, std::uint64_t offset, std::size_t size_bytes);
  bool has_bytes(Segment& segment, std::uint64_t offset, std::uint64_t size_bytes);
  Status take_head(std::size_t i, std::uint32_t index, std::uint64_t offset,
                   const DecodedHead& decoded);
  std::uint32_t segment_index(std::uint64_t id);
  Status open(Segment& segment);
  Status look_at(Segment& segment);
  std::uint32_t header_index(const SharedHeader& header);
  SharedHeader shared(std::string_view header);

  std::string_view context_bytes() const { return {context_bytes_.data(), context_bytes_.size()}; }

  const EntryIds ids_;
  const std::array<char, Digest128::kSizeBytes> context_bytes_;
  SegmentReaders& readers_;
  FoundEntries found_;
  std::array<std::uint32_t, 64> segment_hints_{};  // by the last bits of the id, which is random
  std::string buffer_;
  std::vector<LocationMap::NewRecord> new_records_;
};

}  // namespace modcache::store
