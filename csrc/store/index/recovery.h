// SPDX-License-Identifier: Apache-2.0
//
// What happens before a directory is used: looking at its versions without changing a byte, and
// making the database anew from the segments.
#pragma once

#include <memory>

#include "base/result.h"
#include "store/directory.h"
#include "store/index/index.h"

namespace modcache::store {

// kUnsupportedVersion: a newer modcache wrote here. Everything else is ok, also a directory that
// is empty or broken. Nothing is changed.
Status check_versions(const Directory& directory);

// Puts a complete database, made from the segments, in the place of what was there (if anything).
// REQUIRES: the directory's lock is held.
Status rebuild_database(const Directory& directory);

// The same without a file, for directories that cannot be written.
Result<std::unique_ptr<Index>> rebuild_in_memory(const Directory& directory);

// Takes a broken database out of the way.
// REQUIRES: the directory's lock is held.
Status remove_database(const Directory& directory);

// The greatest number among the records that follow those which the database knows. One that the
// control page has not given out yet tells that page and database are older than the segments, such
// as those of a backup. Looks at the ends of the segments alone. `with_payloads`: 0 where one of
// these records fails its checksum.
Result<Sequence> last_sequence_behind(const Directory& directory, Index& index, bool with_payloads);

// Whether all segments can be read, and records follow one another in each. Reads their heads.
bool are_whole(const Directory& directory);

}  // namespace modcache::store
