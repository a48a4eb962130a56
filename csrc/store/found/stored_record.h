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
// kCorruption: the fixed part of a head says that the record is another than that of `id` with this
// sequence. It says nothing of the key but its size, and no checksum was looked at.
Status check_is_head_of(const RecordHead& head, Sequence sequence, const EntryId& id);
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

}  // namespace modcache::store
