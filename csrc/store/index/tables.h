// SPDX-License-Identifier: Apache-2.0
//
// Tables: single rows of an index's database, by statements that are prepared once. Index and the
// functions beside it (clearing.h, segment_rows.h, listed.h) are made of these steps; nobody else
// uses them.
//
// Not thread-safe: the caller holds the index's mutex (IndexLock), and for changes a transaction.
// The database has numbers of its own for contexts and segments, which are ids here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "store/entry/clear.h"
#include "store/entry/entry_id.h"
#include "store/index/database.h"
#include "store/index/index.h"
#include "store/segment/location.h"

namespace modcache::store {

// An SQL expression for the size of a record in a segment, from the sizes in its row (FORMAT.md).
inline constexpr char kRecordBytesSql[] =
    "((80+length(key)+header_size+63)/64*64+(payload_size+63)/64*64)";

// These read a column of a row. kCorruption: modcache never writes such a value.
Result<std::uint64_t> segment_named(std::string_view name);
Result<Digest128> digest_in(const Query& query, int column);

class Tables {
 public:
  explicit Tables(std::unique_ptr<Database> database) : database_(std::move(database)) {}

  // Only tables that are prepared for writing can be changed.
  Status prepare_for_reading();
  Status prepare_for_writing();

  Database& database() { return *database_; }
  // kIoError: the tables were prepared for reading only.
  Result<Transaction> begin_writing();

  // Returns 0 when the context is not known.
  Result<std::int64_t> known_context_id(const Digest128& digest);
  Result<std::uint64_t> segment_of(std::int64_t id);
  // These add a row for what is not known.
  Result<std::int64_t> context_id(const Context& context);
  Result<std::int64_t> segment_id(std::uint64_t segment);

  Result<Location> find(const Digest128& context, std::string_view key);
  // The same within a context. `segments` keeps the segments that were seen, by their ids.
  using SegmentsById = std::map<std::int64_t, std::uint64_t>;
  Result<std::optional<Location>> find_in(std::int64_t context, std::string_view key,
                                          SegmentsById& segments);
  Result<bool> replaces(const Digest128& context, std::string_view key, Sequence sequence);
  // Returns the sequence that the row replaced, 0 for none; nothing when the row was skipped.
  Result<std::optional<Sequence>> add_row(const NewRow& row, std::int64_t context,
                                          std::int64_t segment);
  // Removes a row, and returns whether it was there.
  Result<bool> remove_row(const Digest128& context, std::string_view key, Sequence sequence);

  Result<std::vector<Clear>> clears_after(Sequence sequence);

  // Returns the sum of the entries that are counted for each segment.
  Result<std::int64_t> count_entries();
  Status add_live_entries(std::int64_t segment, std::int64_t count);
  Status add_tombstone(std::uint64_t segment);
  Status forget_segment(std::uint64_t segment);

  Result<Sequence> last_sequence();
  Status raise_last_sequence(Sequence sequence);
  // See Index::last_offset().
  Result<std::uint64_t> last_offset(std::uint64_t segment);
  Status raise_last_offset(std::uint64_t segment, std::uint64_t offset);

 private:
  std::unique_ptr<Database> database_;
  bool is_writable_ = false;
  Statement find_;
  Statement find_in_context_;
  Statement segment_by_id_;
  Statement clears_after_;
  Statement context_by_digest_;
  Statement add_context_;
  Statement segment_by_name_;
  Statement add_segment_;
  Statement add_entry_;
  Statement entry_of_key_;
  Statement replace_entry_;
  Statement mark_as_replacing_;
  Statement replaces_;
  Statement remove_entry_;
  Statement add_live_entries_;
  Statement raise_last_sequence_;
  Statement raise_last_offset_;
};

// The offset of the last record of each segment that a transaction makes rows lead to.
class LastOffsets {
 public:
  void note(std::uint64_t segment, std::uint64_t offset) {
    std::uint64_t& last = offsets_[segment];
    last = std::max(last, offset);
  }
  Status raise_in(Tables& tables) const {
    for (const auto& [segment, offset] : offsets_) {
      MODCACHE_RETURN_IF_ERROR(tables.raise_last_offset(segment, offset));
    }
    return Status::ok();
  }

 private:
  std::map<std::uint64_t, std::uint64_t> offsets_;
};

}  // namespace modcache::store
