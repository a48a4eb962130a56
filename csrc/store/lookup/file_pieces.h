// SPDX-License-Identifier: Apache-2.0
//
// Pieces of segment files that will be read soon: put together, so that a disk reads few large ones
// in the order in which they lie. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

namespace modcache::store {

struct FilePiece {
  std::uint64_t segment = 0;
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;

  std::uint64_t end() const { return offset + size_bytes; }
};

// Returns pieces that cover the given ones, in the order of their places. Those of one segment with
// at most `gap_bytes` between them become one. REQUIRES: no piece reaches beyond 2^63.
std::vector<FilePiece> put_together(std::vector<FilePiece> pieces, std::uint64_t gap_bytes);

}  // namespace modcache::store
