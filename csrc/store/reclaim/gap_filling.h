// SPDX-License-Identifier: Apache-2.0
//
// What power loss leaves in segments. Where writes of which nobody was promised anything reached
// the disk in part, no records are; a rebuild would take that for damage, and what it found for
// outdated.
#pragma once

#include "store/directory.h"
#include "store/index/index.h"

namespace modcache::store {

// Fills gaps of segments that were written shortly before the machine stopped with records that say
// nothing, and removes segments that never got a header. Left alone is what `index` says held an
// entry whose sequence is not above `confirmed`: that is damage.
// REQUIRES: the directory's lock is held.
Status fill_gaps(const Directory& directory, Index& index, Sequence confirmed);

}  // namespace modcache::store
