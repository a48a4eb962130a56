// SPDX-License-Identifier: Apache-2.0
//
// The bytes of a segment file: its header, and the records after it (FORMAT.md has the grammar).
// Pure functions over memory, without files. The bytes that they decode come from disk, and are
// trusted only after bounds and checksum were checked; anything else is kCorruption.
//
// Format version history
//  1: drafts.
//  2: smaller samples of inputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "base/result.h"

namespace modcache::store {

inline constexpr std::uint8_t kSegmentFormatVersion = 2;
inline constexpr std::uint8_t kRecordFormatVersion = 1;
inline constexpr std::size_t kRecordAlignmentBytes = 64;
inline constexpr std::size_t kSegmentHeaderSizeBytes = 64;
inline constexpr std::size_t kRecordFixedSizeBytes = 80;

inline constexpr std::uint64_t align_record(std::uint64_t size_bytes) {
  return (size_bytes + kRecordAlignmentBytes - 1) / kRecordAlignmentBytes * kRecordAlignmentBytes;
}

struct SegmentHeader {
  std::uint64_t salt = 0;  // random; seeds the checksums of the segment's record heads
  std::uint64_t id = 0;    // random; the file's name
  std::int64_t created_at_us = 0;
};

std::string encode_segment_header(const SegmentHeader& header);
// kUnsupportedVersion: another version of modcache wrote it.
Result<SegmentHeader> decode_segment_header(std::string_view bytes);

// The kind determines the meaning of key, opaque header and payload.
enum class RecordKind : std::uint8_t {
  kEntry = 1,    // key, the value's opaque header, the value's payload
  kContext = 2,  // key: the scope; payload: the description
  kClear = 3,    // key: the key prefix; opaque header: the scope
};

// The fixed part of a record's head. Key and opaque header follow it, then zeros up to the next
// multiple of 64 bytes, where the payload begins.
struct RecordHead {
  RecordKind kind = RecordKind::kEntry;
  std::uint64_t sequence = 0;
  Digest128 context;
  std::int64_t run_us = 0;
  std::int64_t stored_at_us = 0;  // since 1970
  std::uint64_t payload_size_bytes = 0;
  std::uint64_t payload_checksum = 0;  // XXH3-64
  std::uint32_t key_size_bytes = 0;
  std::uint32_t header_size_bytes = 0;

  // The size without the padding.
  std::uint64_t head_size_bytes() const {
    return kRecordFixedSizeBytes + std::uint64_t{key_size_bytes} + header_size_bytes;
  }
  std::uint64_t payload_offset() const { return align_record(head_size_bytes()); }
  std::uint64_t record_size_bytes() const {
    return payload_offset() + align_record(payload_size_bytes);
  }
};

// Returns the size of a record with these parts.
inline std::uint64_t record_size_bytes(std::size_t key_size_bytes, std::size_t header_size_bytes,
                                       std::uint64_t payload_size_bytes) {
  RecordHead head;
  head.key_size_bytes = static_cast<std::uint32_t>(key_size_bytes);
  head.header_size_bytes = static_cast<std::uint32_t>(header_size_bytes);
  head.payload_size_bytes = payload_size_bytes;
  return head.record_size_bytes();
}

// Returns the record up to its payload, padding included. Sets the sizes of key and header. The
// header is `own_part` followed by `header`.
std::string encode_record_head(RecordHead head, std::string_view key, std::string_view header,
                               std::uint64_t salt, std::string_view own_part = {});

// Decodes the fixed part alone, and checks bounds but not the checksum, which covers the rest of
// the head, too.
// REQUIRES: bytes.size() >= kRecordFixedSizeBytes.
Result<RecordHead> peek_record_head(std::string_view bytes);

struct DecodedHead {
  RecordHead fixed;
  std::string_view key;     // into the decoded bytes
  std::string_view header;  // into the decoded bytes
};

// Decodes a whole head; kCorruption unless its checksum is right. `salt` is the segment's.
// REQUIRES: bytes holds at least the fixed part.
Result<DecodedHead> decode_record_head(std::string_view bytes, std::uint64_t salt);
// Does the same for bytes of which peek_record_head() gave `fixed`, without peeking again.
// REQUIRES: these very bytes have not changed since.
Result<DecodedHead> decode_record_head(const RecordHead& fixed, std::string_view bytes,
                                       std::uint64_t salt);

// Returns the record's sequence, unchecked. REQUIRES: there are kRecordFixedSizeBytes at `bytes`.
std::uint64_t record_sequence(const void* bytes);

// Returns the time of a record for which is_head_of() is true. REQUIRES: as there.
std::int64_t record_stored_at_us(const void* bytes);

// Returns whether the record of kind entry at `bytes` still is the one whose head was decoded
// before. Compares sequence, context and key, but no checksum. `context` is the digest as 16 bytes.
// REQUIRES: there are kRecordFixedSizeBytes + key.size() bytes.
bool is_head_of(const void* bytes, std::uint64_t sequence, std::string_view context,
                std::string_view key);

}  // namespace modcache::store
