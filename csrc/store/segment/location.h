// SPDX-License-Identifier: Apache-2.0
//
// Location: the place of an entry's record, and the values that the record must have.
#pragma once

#include <cstdint>

#include "store/entry/entry_id.h"
#include "store/segment/record.h"

namespace modcache::store {

struct Location {
  std::uint64_t segment = 0;
  std::uint64_t offset = 0;
  std::uint32_t header_size_bytes = 0;
  std::uint64_t payload_size_bytes = 0;
  Sequence sequence = 0;
  std::int64_t run_us = 0;

  bool is_same_place(const Location& other) const {
    return sequence == other.sequence && segment == other.segment && offset == other.offset;
  }
};

// The location of the record of kind entry with this head.
inline Location location_of(const RecordHead& head, std::uint64_t segment, std::uint64_t offset) {
  return {segment,       offset,     head.header_size_bytes, head.payload_size_bytes,
          head.sequence, head.run_us};
}

}  // namespace modcache::store
