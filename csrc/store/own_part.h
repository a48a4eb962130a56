// SPDX-License-Identifier: Apache-2.0
//
// An entry's header is opaque to the store, but most entries of a context share theirs, and a
// process keeps each distinct header once (location_map.h). A header may therefore begin with an
// own part: bytes that differ from entry to entry, which are kept apart from what is shared.
//
//     header ::= own_part? shared            own_part ::= u32(2^31 + size) byte{size}
//
// A shared part never begins with a number that has the highest bit set. A reader that knows no
// own part refuses such a header, since the number is larger than any header is.
// Pure functions over memory.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace modcache::store {

inline constexpr std::size_t kOwnPrefixBytes = 4;
inline constexpr std::size_t kMostOwnBytes = 59;
inline constexpr std::size_t kMostOwnPartBytes = kOwnPrefixBytes + kMostOwnBytes;

struct HeaderParts {
  std::string_view own_part;  // as it lies there; empty: there is none
  std::string_view shared;

  std::string_view own() const {
    return own_part.empty() ? own_part : own_part.substr(kOwnPrefixBytes);
  }
};

// The parts point into `header`. An own part that the header is too short for, or that is larger
// than any, counts as shared: whoever reads that finds no header then.
HeaderParts split_header(std::string_view header);

// Puts `own` before a shared part; nothing where it is empty. REQUIRES: at most kMostOwnBytes.
std::string own_part_of(std::string_view own);

}  // namespace modcache::store
