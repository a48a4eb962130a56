// SPDX-License-Identifier: Apache-2.0
//
// Rebuilds the database of a directory from its segments, and detects when that is necessary.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "base/result.h"
#include "store/control/control_page.h"
#include "store/directory/directory.h"
#include "store/entry/entry_id.h"
#include "store/index/index.h"
#include "store/segment/segment_writer.h"

namespace modcache::store {

// Makes a complete database from the segments, and replaces whatever is there by it. REQUIRES: the
// directory's lock is held.
Status rebuild_database(const Directory& directory);

// Does the same without a file, for directories that cannot be written.
Result<std::unique_ptr<Index>> rebuild_in_memory(const Directory& directory);

// Removes a broken database. REQUIRES: the directory's lock is held.
Status remove_database(const Directory& directory);

// Before the row of this entry is dropped: appends the clear record without which a rebuild would
// bring back what the entry replaced, or would miss the last sequence. Returns the segment that has
// it; nothing where none is needed. kNotFound: the row does not have this sequence (any more).
// REQUIRES: the directory's lock is held.
Result<std::optional<std::uint64_t>> append_clear_of_dropped(
    Index& index, const ControlPage& control, SegmentWriter& segments, const Context& context,
    std::string_view key, Sequence sequence);

// Returns the greatest sequence among the records after those that the database knows. If the
// control page has not given it out yet, page and database are older than the segments, as after
// restoring a backup. Reads the ends of the segments alone. With `with_payloads`, returns 0 when
// one of these records fails its checksum.
Result<Sequence> last_sequence_behind(const Directory& directory, Index& index, bool with_payloads);

// Returns whether all segments can be read and consist of consecutive records. Reads their heads.
bool are_whole(const Directory& directory);

}  // namespace modcache::store
