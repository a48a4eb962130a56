// SPDX-License-Identifier: Apache-2.0
//
// Retired segments, which no row leads to any more. A process may still read from one, through a
// mapping even after its store is closed, and until then it takes space on the disk. So it is
// renamed to `<id>.gone`, and counts, until nobody holds it (fs/file_system.h); then it is
// unlinked. Where the file system has no holds it is unlinked at once.
//
// Any process may do any of this at any time, also in place of one that died.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "store/directory/directory.h"

namespace modcache::store {

// Retires the segment. REQUIRES: no row leads to it, and the caller has the segment's lock.
// kNotFound: it is retired already.
Status retire_segment(const Directory& directory, std::uint64_t id);

struct RetiredSegments {
  std::uint64_t freed_bytes = 0;
  std::uint64_t held_bytes = 0;  // of those that somebody reads
  // The part of them that was retired recently, whose readers are about to let go.
  std::uint64_t leaving_bytes = 0;
};
// Unlinks all that nobody holds.
Result<RetiredSegments> remove_retired(const Directory& directory);

}  // namespace modcache::store
