// SPDX-License-Identifier: Apache-2.0
#include "store/lookup/file_pieces.h"

#include <algorithm>
#include <tuple>

namespace modcache::store {

std::vector<FilePiece> put_together(std::vector<FilePiece> pieces, std::uint64_t gap_bytes) {
  std::sort(pieces.begin(), pieces.end(), [](const FilePiece& a, const FilePiece& b) {
    return std::tie(a.segment, a.offset) < std::tie(b.segment, b.offset);
  });
  std::vector<FilePiece> together;
  for (const FilePiece& piece : pieces) {
    if (!together.empty() && together.back().segment == piece.segment &&
        piece.offset <= together.back().end() + gap_bytes) {
      FilePiece& last = together.back();
      last.size_bytes = std::max(last.end(), piece.end()) - last.offset;
    } else {
      together.push_back(piece);
    }
  }
  return together;
}

}  // namespace modcache::store
