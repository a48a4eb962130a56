// SPDX-License-Identifier: Apache-2.0
//
// Repairs what power loss leaves in segments. Writes that were not synced may have reached the disk
// in part, and leave gaps between records. A rebuild would take a gap for damage, and distrust the
// entries that it finds.
#pragma once

#include "base/status.h"
#include "store/directory/directory.h"
#include "store/entry/entry_id.h"
#include "store/index/index.h"

namespace modcache::store {

// Fills gaps in segments that were written shortly before the machine stopped with records that
// mean nothing, and removes segments that never got a header. Leaves alone a gap in which,
// according to `index`, an entry lay whose sequence is at most `confirmed`: that is real damage.
// REQUIRES: the directory's lock is held.
Status fill_gaps(const Directory& directory, Index& index, Sequence confirmed);

}  // namespace modcache::store
