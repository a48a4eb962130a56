// SPDX-License-Identifier: Apache-2.0
//
// Bytes with their checksums set right, so that what is behind the checks is fuzzed, too.
#pragma once

#include <cstring>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "store/segment/record.h"

namespace modcache::fuzz {

inline constexpr std::uint64_t kSegment = 0x1122334455667788;
inline constexpr std::uint64_t kSalt = 77;

inline void set_checksum(std::string& bytes, std::size_t offset, std::uint64_t checksum) {
  for (std::size_t i = 0; i < 8; ++i) {
    bytes[offset + i] = static_cast<char>((checksum >> (8 * i)) & 0xff);
  }
}

// Believable to its last checksum, whatever it says: so the code behind the checks is reached.
inline std::string sealed(std::string_view records) {
  std::string bytes = store::encode_segment_header({kSalt, kSegment, 1});
  bytes.append(records);
  for (std::size_t at = store::kSegmentHeaderSizeBytes;
       at + store::kRecordFixedSizeBytes <= bytes.size(); at += store::kRecordAlignmentBytes) {
    const std::string_view rest = std::string_view(bytes).substr(at);
    auto head = store::peek_record_head(rest);
    if (!head.is_ok() || head.value().head_size_bytes() > rest.size()) continue;
    if (head.value().payload_offset() + head.value().payload_size_bytes <= rest.size()) {
      const std::uint64_t checksum =
          xxh3_64(rest.data() + head.value().payload_offset(), head.value().payload_size_bytes);
      std::memcpy(bytes.data() + at + 64, &checksum, sizeof checksum);
    }
    set_checksum(bytes, at,
                 xxh3_64(bytes.data() + at + 8, head.value().head_size_bytes() - 8, kSalt));
  }
  return bytes;
}

}  // namespace modcache::fuzz
