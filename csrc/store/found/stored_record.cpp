// SPDX-License-Identifier: Apache-2.0
#include "store/found/stored_record.h"

#include <string>
#include <utility>

#include "store/entry/entry_id.h"
#include "store/entry/put.h"
#include "store/segment/location.h"

namespace modcache::store {
namespace {

// Memory for a payload up to this size may be allocated in vain.
constexpr std::uint64_t kAskedForInVainBytes = 1 << 20;

// A head's own checksum says nothing of whether the file is as long as it claims.
Status check_end(const SegmentReader& reader, std::uint64_t offset, const RecordHead& head) {
  if (head.payload_size_bytes <= kAskedForInVainBytes) return Status::ok();
  MODCACHE_ASSIGN_OR_RETURN(auto size_bytes, reader.size_bytes());
  const std::uint64_t begin = offset + head.payload_offset();
  const bool fits = begin <= size_bytes && head.payload_size_bytes <= size_bytes - begin;
  return fits ? Status::ok() : Status::corruption("a record claims more than its file has");
}

}  // namespace

Result<std::size_t> entry_head_size_bytes(const Location& location, const EntryId& id) {
  if (location.header_size_bytes > kMaxHeaderSizeBytes) {
    return Status::corruption("the database claims an impossible size");
  }
  return kRecordFixedSizeBytes + id.key.size() + location.header_size_bytes;
}

Status check_is_head_of(const RecordHead& head, Sequence sequence, const EntryId& id) {
  if (head.kind != RecordKind::kEntry || head.context != id.context.digest ||
      head.key_size_bytes != id.key.size() || head.sequence != sequence) {
    return Status::corruption("the index leads to the record of another entry");
  }
  return Status::ok();
}

Result<DecodedHead> decode_entry_head(std::string_view bytes, std::uint64_t salt,
                                      const Location& location, const EntryId& id) {
  MODCACHE_ASSIGN_OR_RETURN(auto decoded, decode_record_head(bytes, salt));
  MODCACHE_RETURN_IF_ERROR(check_is_head_of(decoded.fixed, location.sequence, id));
  if (decoded.key != id.key || decoded.fixed.payload_size_bytes != location.payload_size_bytes) {
    return Status::corruption("the index leads to the record of another entry");
  }
  return decoded;
}

Result<StoredRecord> read_record(std::shared_ptr<SegmentReader> reader, const Location& location,
                                 const EntryId& id) {
  MODCACHE_ASSIGN_OR_RETURN(auto size_bytes, entry_head_size_bytes(location, id));
  std::string bytes(size_bytes, '\0');
  MODCACHE_RETURN_IF_ERROR(reader->read(location.offset, bytes.data(), bytes.size()));
  MODCACHE_ASSIGN_OR_RETURN(auto decoded, decode_entry_head(bytes, reader->salt(), location, id));
  MODCACHE_RETURN_IF_ERROR(check_end(*reader, location.offset, decoded.fixed));
  return StoredRecord{std::move(reader), location.offset, decoded.fixed,
                      std::string(decoded.header)};
}

Status read_payload(const StoredRecord& record, void* target) {
  const RecordHead& head = record.head;
  MODCACHE_RETURN_IF_ERROR(
      record.reader->read(record.offset + head.payload_offset(), target, head.payload_size_bytes));
  // The copy is checked, not the file: the bytes there may change between two looks.
  if (xxh3_64(target, head.payload_size_bytes) != head.payload_checksum) {
    return Status::corruption("a payload fails its checksum");
  }
  return Status::ok();
}

}  // namespace modcache::store
