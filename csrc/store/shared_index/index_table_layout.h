// SPDX-License-Identifier: Apache-2.0
//
// The parts of a table's file (FORMAT.md, `index.map`). For index_table*.cpp alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "store/shared_index/index_table.h"

namespace modcache::store::index_table_layout {

inline constexpr std::size_t kHeaderBytes = 4096;
inline constexpr std::size_t kSlotBytes = 32;
// Slots after the last home, so that no search wraps around; also the most slots that a search
// looks at.
inline constexpr std::uint64_t kMostProbes = 512;
inline constexpr std::uint64_t kMostSlots = 1 << 30;

inline std::uint64_t slots_begin(const IndexTable::Size& size) {
  return (kHeaderBytes + 8 * size.segments + kHeaderBytes - 1) / kHeaderBytes * kHeaderBytes;
}

inline std::uint64_t file_bytes(const IndexTable::Size& size) {
  return slots_begin(size) + (size.slots + kMostProbes) * kSlotBytes;
}

}  // namespace modcache::store::index_table_layout
