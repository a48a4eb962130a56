// SPDX-License-Identifier: Apache-2.0
//
// The two kinds of FoundEntry: still queued, and stored in a segment.
#pragma once

#include <memory>

#include "store/index.h"
#include "store/segment_reader.h"
#include "store/store.h"
#include "store/write_queue.h"

namespace modcache::store {

std::unique_ptr<FoundEntry> queued_entry(QueuedPutPtr put);

// kCorruption: the record at `location` is not that of `id`.
Result<std::unique_ptr<FoundEntry>> stored_entry(std::shared_ptr<SegmentReader> reader,
                                                 const Location& location, const EntryId& id);

}  // namespace modcache::store
