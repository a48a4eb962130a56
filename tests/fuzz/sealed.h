// SPDX-License-Identifier: Apache-2.0
//
// Bytes with their checksums set right, so that what is behind the checks is fuzzed, too.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "store/segment/record.h"
#include "support/sealing.h"

namespace modcache::fuzz {

inline constexpr std::uint64_t kSegment = 0x1122334455667788;
inline constexpr std::uint64_t kSalt = 77;

using testing::set_checksum;

// Believable to its last checksum, whatever it says: so the code behind the checks is reached.
inline std::string sealed(std::string_view records) {
  std::string bytes = store::encode_segment_header({kSalt, kSegment, 1});
  bytes.append(records);
  for (std::size_t at = store::kSegmentHeaderSizeBytes;
       at + store::kRecordFixedSizeBytes <= bytes.size(); at += store::kRecordAlignmentBytes) {
    testing::seal_record(bytes, at, bytes.size(), kSalt, /*with_payload=*/true);
  }
  return bytes;
}

}  // namespace modcache::fuzz
