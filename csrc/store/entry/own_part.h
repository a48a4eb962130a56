// SPDX-License-Identifier: Apache-2.0
//
// An entry's header is opaque to the store. Most entries of a context share theirs, and a process
// keeps each distinct header once (location_map.h). So a header may begin with an own part: bytes
// that differ between entries and are kept apart from the shared bytes.
//
//     header ::= own_part? shared            own_part ::= u32(2^31 + size) byte{size}
//
// A shared part never begins with a number whose highest bit is set. A reader that does not know
// own parts refuses such a header, since the number exceeds every header's size.
// Pure functions over memory.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace modcache::store {

inline constexpr std::size_t kOwnPrefixBytes = 4;
inline constexpr std::size_t kMostOwnBytes = 56;
inline constexpr std::size_t kMostOwnPartBytes = kOwnPrefixBytes + kMostOwnBytes;

struct HeaderParts {
  std::string_view own_part;  // as it lies in the header; empty: there is none
  std::string_view shared;

  std::string_view own() const {
    return own_part.empty() ? own_part : own_part.substr(kOwnPrefixBytes);
  }
};

// The parts point into `header`. An own part that is too large, or that reaches beyond the header,
// counts as shared bytes, which no reader accepts as a header then.
HeaderParts split_header(std::string_view header);

// Returns the bytes to put before a shared part; none when `own` is empty. REQUIRES: at most
// kMostOwnBytes.
std::string own_part_of(std::string_view own);

}  // namespace modcache::store
