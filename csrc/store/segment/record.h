// SPDX-License-Identifier: Apache-2.0
//
// Bytes of a segment file: its header, and the records behind it (FORMAT.md has the grammar).
// Pure functions over memory; nothing here knows files. What they decode comes from disk and is
// believed only after its bounds and checksum were checked: every refusal is kCorruption.
//
// Format version history
//  1: first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "base/result.h"

namespace modcache::store {

inline constexpr std::uint8_t kSegmentFormatVersion = 1;
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
// kUnsupportedVersion: written by a newer modcache.
Result<SegmentHeader> decode_segment_header(std::string_view bytes);

// What a record is about decides how it uses key, opaque header and payload.
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

  // Without the padding.
  std::uint64_t head_size_bytes() const {
    return kRecordFixedSizeBytes + std::uint64_t{key_size_bytes} + header_size_bytes;
  }
  std::uint64_t payload_offset() const { return align_record(head_size_bytes()); }
  std::uint64_t record_size_bytes() const {
    return payload_offset() + align_record(payload_size_bytes);
  }
};

// The record up to its payload, padding included. The sizes of key and header are set here. The
// header is `own_part` and `header`, one after the other.
std::string encode_record_head(RecordHead head, std::string_view key, std::string_view header,
                               std::uint64_t salt, std::string_view own_part = {});

// The fixed part alone: bounds are checked, the checksum is not (it covers what follows too).
// REQUIRES: bytes.size() >= kRecordFixedSizeBytes.
Result<RecordHead> peek_record_head(std::string_view bytes);

struct DecodedHead {
  RecordHead fixed;
  std::string_view key;     // into the decoded bytes
  std::string_view header;  // into the decoded bytes
};

// REQUIRES: bytes holds at least the fixed part.
Result<DecodedHead> decode_record_head(std::string_view bytes, std::uint64_t salt);

// REQUIRES: kRecordFixedSizeBytes are there.
std::uint64_t record_sequence(const void* bytes);

// Of a record that is_head_of(). REQUIRES: as there.
std::int64_t record_stored_at_us(const void* bytes);

// Whether a record of kind entry at `bytes` is still the one whose head was decoded before: its
// sequence, context and key, and no checksum. `context` is the digest as 16 bytes.
// REQUIRES: kRecordFixedSizeBytes + key.size() bytes are there.
bool is_head_of(const void* bytes, std::uint64_t sequence, std::string_view context,
                std::string_view key);

}  // namespace modcache::store
