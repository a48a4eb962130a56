// SPDX-License-Identifier: Apache-2.0
//
// When a segment was begun.
#pragma once

#include <cstdint>

#include "store/directory/directory.h"
#include "store/entry/entry_id.h"

namespace modcache::store {

struct SegmentBeginning {
  Sequence first_sequence = 0;
  std::int64_t created_at_us = 0;
};

// Zeros where the file cannot be read. The first record's checksum is not checked: the answer only
// orders segments.
SegmentBeginning beginning_of(const Directory& directory, std::uint64_t segment);

}  // namespace modcache::store
