// SPDX-License-Identifier: Apache-2.0
//
// Sets the checksums of bytes right that a test has changed, so that what is behind them is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "store/segment/record.h"

namespace modcache::testing {

inline void set_checksum(std::string& bytes, std::size_t offset, std::uint64_t checksum) {
  for (std::size_t i = 0; i < 8; ++i) {
    bytes[offset + i] = static_cast<char>((checksum >> (8 * i)) & 0xff);
  }
}

// Of a header, head, page or footer, which begins with the checksum of the rest of it.
inline void seal(std::string& bytes, std::size_t begin, std::size_t size_bytes,
                 std::uint64_t salt = 0) {
  set_checksum(bytes, begin, xxh3_64(bytes.data() + begin + 8, size_bytes - 8, salt));
}

// The record that begins there, if one does that ends before `end`. `with_payload`: where all of
// it is there.
inline void seal_record(std::string& bytes, std::size_t begin, std::size_t end, std::uint64_t salt,
                        bool with_payload) {
  const auto head = store::peek_record_head(std::string_view(bytes).substr(begin, end - begin));
  if (!head.is_ok() || begin + head.value().head_size_bytes() > end) return;
  const std::size_t payload = begin + head.value().payload_offset();
  if (with_payload && payload <= end && head.value().payload_size_bytes <= end - payload) {
    set_checksum(bytes, begin + 64,
                 xxh3_64(bytes.data() + payload, head.value().payload_size_bytes));
  }
  seal(bytes, begin, head.value().head_size_bytes(), salt);
}

}  // namespace modcache::testing
