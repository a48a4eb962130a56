// SPDX-License-Identifier: Apache-2.0
//
// Segments that nothing leads to any more. Somebody may still read from one, through a mapping even
// after the store is closed, and as long as it is read it takes room on the disk. So it is renamed
// to `<id>.gone`, and counts, until nobody holds it (fs/file_system.h); then it is unlinked. Where
// there are no holds it is unlinked at once.
//
// Any process may do any of this at any time; a process that dies leaves the rest to the others.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "store/directory.h"

namespace modcache::store {

// REQUIRES: no row leads there, and the caller has the segment's lock. kNotFound: it is gone.
Status make_gone(const Directory& directory, std::uint64_t id);

struct GoneSegments {
  std::uint64_t freed_bytes = 0;
  std::uint64_t held_bytes = 0;  // of those that somebody reads
  // Of these, that became gone not long ago: their readers are about to let go.
  std::uint64_t leaving_bytes = 0;
};
// Unlinks all that nobody holds.
Result<GoneSegments> remove_gone(const Directory& directory);

}  // namespace modcache::store
