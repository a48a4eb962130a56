// SPDX-License-Identifier: Apache-2.0
//
// Clears in the database: they remove many rows at once, and the database remembers them. Each
// function is one transaction. REQUIRES: the directory's lock is held.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "store/entry/clear.h"
#include "store/entry/entry_id.h"
#include "store/index/index.h"

namespace modcache::store {

struct SegmentFacts {
  std::uint64_t id = 0;
  std::int64_t live_entries = 0;
  std::int64_t tombstones = 0;  // clear records in it
};

// The changes that a clear makes to the segments.
struct SegmentPlan {
  std::vector<std::uint64_t> forgotten;         // no longer part of the index
  std::optional<std::uint64_t> with_tombstone;  // holds the record of this clear
};

// The rows that a clear removed, for owners of a copy of the index.
struct RemovedRows {
  struct Row {
    Digest128 context;
    std::string key;
    Sequence sequence = 0;
  };
  std::vector<Row> rows;
  bool is_complete = true;  // false: there were too many to name
};

// Removes rows and remembers the clear. Before the commit `plan` gets the contents of the segments
// after the clear; if it fails, everything is undone. Returns the number of rows removed; `removed`
// gets these rows.
using SegmentPlanner = std::function<Result<SegmentPlan>(const std::vector<SegmentFacts>&)>;
Result<std::int64_t> clear_rows(Index& index, const Clear& clear, const SegmentPlanner& plan,
                                RemovedRows* removed = nullptr);

// For a rebuild: adds the clears that a segment records.
Status restore_clears(Index& index, std::uint64_t segment, const std::vector<Clear>& clears);
// For a rebuild, once all segments were read: applies the narrow clears.
Status apply_narrow_clears(Index& index, const std::vector<Clear>& clears);

}  // namespace modcache::store
