// SPDX-License-Identifier: Apache-2.0
//
// Large values in pieces, so that one value neither holds up a connection for long nor lies on one
// node alone. The value's name has a head that says of how many pieces it is; each piece says of
// which write it is, so that the pieces of two writers are never taken for one value. (The head is
// written last.) FORMAT.md has the bytes. Pure functions over memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "remote/backend.h"

namespace modcache::backends {

inline constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

struct ChunkedHead {
  std::uint64_t write = 0;  // random
  std::uint64_t size_bytes = 0;

  std::size_t chunks() const {
    return static_cast<std::size_t>((size_bytes + kChunkBytes - 1) / kChunkBytes);
  }
};

inline constexpr std::size_t kChunkedHeadBytes = 32;
std::string encode_chunked_head(const ChunkedHead& head);
// Nothing: it is a value in one piece.
std::optional<ChunkedHead> decode_chunked_head(std::string_view value);

std::string chunk_name(const std::string& name, std::size_t chunk);
// The piece as it is stored. REQUIRES: chunk < head.chunks().
std::string encode_chunk(const ChunkedHead& head, std::string_view value, std::size_t chunk);
// Nothing: it is not this piece of this write.
std::optional<std::string_view> decode_chunk(const ChunkedHead& head, std::size_t chunk,
                                             std::string_view stored);

}  // namespace modcache::backends
