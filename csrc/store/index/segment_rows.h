// SPDX-License-Identifier: Apache-2.0
//
// What the database says of single segments, and the changes that empty one: its entries are moved
// or evicted, and then it is forgotten. Each function is one transaction.
// REQUIRES of settle_rows() and forget_segment(): the directory's lock is held.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "policy/policy.h"
#include "store/entry/clear.h"
#include "store/entry/entry_id.h"
#include "store/index/index.h"

namespace modcache::store {

struct LiveBytes {
  std::uint64_t segment = 0;
  std::int64_t entries = 0;  // all rows that lead to the segment
  std::uint64_t size_bytes = 0;
};
// Returns for each segment the size of its entries that were stored since then. Reads every row, so
// it is for a connection that nobody else waits for.
Result<std::vector<LiveBytes>> live_bytes(Index& index, std::int64_t stored_since_us);

// The location of a record; borrowed.
struct PlacedRow {
  Digest128 context;
  std::string_view key;
  Sequence sequence = 0;
  std::uint64_t segment = 0;
  std::uint64_t offset = 0;
};
struct RowState {
  bool is_live = false;   // the index leads to this very record
  bool replaces = false;  // and the segments may hold an older record of its key
};
// Returns one state per row.
Result<std::vector<RowState>> states_of(Index& index, const std::vector<PlacedRow>& rows);

struct MovedRow {
  PlacedRow row;
  std::uint64_t to_segment = 0;
  std::uint64_t to_offset = 0;
  std::uint64_t size_bytes = 0;  // of the whole record
  policy::Usage usage;
};
struct Settled {
  std::vector<bool> is_moved;  // one per row that was to be moved
  std::int64_t moved = 0;
  std::int64_t evicted = 0;
};
// Makes rows of `segment` lead to where their records were moved, and removes others. Skips rows
// that have changed meanwhile. `tombstones` are the segments that now hold clear records for some
// of these.
Result<Settled> settle_rows(Index& index, std::uint64_t segment, const std::vector<MovedRow>& moved,
                            const std::vector<PlacedRow>& evicted,
                            const std::vector<std::uint64_t>& tombstones);

// Returns whether an entry whose sequence is at most `up_to` lies in this range. Reads every row.
Result<bool> leads_into(Index& index, std::uint64_t segment, std::uint64_t begin, std::uint64_t end,
                        Sequence up_to);

// Returns the clears that must be recorded elsewhere before the segment is forgotten: those that
// keep older records of its remaining entries from coming back and, if it `is_damaged`, all known
// clears.
Result<std::vector<Clear>> clears_to_record(Index& index, std::uint64_t segment, bool is_damaged);
// Removes the segment and the rows that still led to it, and returns their number.
// `clears_moved_to` has the segment in which each of its clear records was written again.
Result<std::int64_t> forget_segment(Index& index, std::uint64_t segment,
                                    const std::vector<std::uint64_t>& clears_moved_to);

}  // namespace modcache::store
