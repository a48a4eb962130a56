// SPDX-License-Identifier: Apache-2.0
//
// Records of segments, read and checked one by one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "store/entry/entry_id.h"
#include "store/segment/location.h"
#include "store/segment/record.h"
#include "store/segment/segment_reader.h"

namespace modcache::store {

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

// Fills head.payload_size_bytes bytes at `target` and checks their checksum.
Status read_payload(const StoredRecord& record, void* target);

// Returns where the entry lies, as its record's fixed part says. kCorruption: that is no such part,
// or another than of `sequence`.
Result<Location> location_in_head(std::string_view bytes, std::uint64_t segment,
                                  std::uint64_t offset, Sequence sequence);

}  // namespace modcache::store
