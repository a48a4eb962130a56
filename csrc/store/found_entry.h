// SPDX-License-Identifier: Apache-2.0
//
// The two kinds of FoundEntry: still queued, and stored in a segment.
#pragma once

#include <memory>

#include "store/index/index.h"
#include "store/location_map.h"
#include "store/segment/record.h"
#include "store/segment/segment_reader.h"
#include "store/store.h"
#include "store/write_queue.h"

namespace modcache::store {

std::unique_ptr<FoundEntry> queued_entry(QueuedPutPtr put);

// How many bytes of a record must be there to decode the head of the entry `id` at `location`.
// kCorruption: it cannot be.
Result<std::size_t> entry_head_size_bytes(const Location& location, const EntryId& id);
// kCorruption: what was read at `location` is not a sound head of the record of `id`.
Result<DecodedHead> decode_entry_head(std::string_view bytes, std::uint64_t salt,
                                      const Location& location, const EntryId& id);

// A record whose head was checked.
struct StoredRecord {
  std::shared_ptr<SegmentReader> reader;
  std::uint64_t offset = 0;
  RecordHead head;
  std::string header;
};
// kCorruption: the record at `location` is not that of `id`.
Result<StoredRecord> read_record(std::shared_ptr<SegmentReader> reader, const Location& location,
                                 const EntryId& id);

// The same for who knows only the place and the sequence, and takes the record's word for its
// sizes.
Result<StoredRecord> read_record_at(std::shared_ptr<SegmentReader> reader, std::uint64_t offset,
                                    Sequence sequence, const EntryId& id);

// Of a record's fixed part: where it says that the entry lies. kCorruption: it is none, or another
// than `sequence`.
Result<Location> location_in_head(std::string_view bytes, std::uint64_t segment,
                                  std::uint64_t offset, Sequence sequence);

std::unique_ptr<FoundEntry> stored_entry(StoredRecord record);

// What to remember of a record in `segment`.
KnownRecord known_record(std::uint64_t segment, const StoredRecord& record, LocationMap& locations);

// Where a record lies that this process knows.
Location location_of(const KnownRecord& record);

}  // namespace modcache::store
