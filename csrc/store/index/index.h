// SPDX-License-Identifier: Apache-2.0
//
// Index: the SQLite database of a directory, which says where each entry lies. It is the source of
// truth: what it does not name is not there.
//
// Thread-safe: one mutex, held across fork, guards the connection. Methods that write require the
// directory's lock (the flock of `lock`), which keeps writers of other processes out.
// kCorruption from any method: the database itself is broken.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "policy/policy.h"
#include "store/index/database.h"
#include "store/listing.h"
#include "store/store.h"

namespace modcache::store {

inline constexpr std::int64_t kApplicationId = 0x6d6f6463;  // "modc"
inline constexpr std::int64_t kUserVersion = 2;

// Where an entry's record lies, and what it must say.
struct Location {
  std::uint64_t segment = 0;
  std::uint64_t offset = 0;
  std::uint32_t header_size_bytes = 0;
  std::uint64_t payload_size_bytes = 0;
  Sequence sequence = 0;
  std::int64_t run_us = 0;

  bool is_same_place(const Location& other) const {
    return sequence == other.sequence && segment == other.segment && offset == other.offset;
  }
};

// Borrowed.
struct NewRow {
  const Context* context;
  std::string_view key;
  Location location;
  std::int64_t stored_at_us;
  bool replaces = false;  // also where no older row is known
};

// A clear that was done, or is about to be.
struct Clear {
  ClearFilter filter;
  Sequence sequence = 0;  // entries with a smaller one are gone
  // Not 0: only the one entry of this context whose whole key the prefix is.
  Digest128 context{};

  // Such clears are found in segments alone: no entry that is put later can be meant.
  bool is_narrow() const { return context != Digest128{} || filter.older_than_us != 0; }
};

bool is_cleared_by(const Clear& clear, const Context& context, std::string_view key,
                   Sequence sequence, std::int64_t stored_at_us = 0);

struct SegmentFacts {
  std::uint64_t id = 0;
  std::int64_t live_entries = 0;
  std::int64_t tombstones = 0;  // clears that are recorded in it
};

// What becomes of the segments in a clear.
struct SegmentPlan {
  std::vector<std::uint64_t> forgotten;         // no longer the index's
  std::optional<std::uint64_t> with_tombstone;  // holds the record of this clear
};

struct LiveBytes {
  std::uint64_t segment = 0;
  std::int64_t entries = 0;  // all rows that lead there
  std::uint64_t size_bytes = 0;
};

// A record where it lies; borrowed.
struct PlacedRow {
  Digest128 context;
  std::string_view key;
  Sequence sequence = 0;
  std::uint64_t segment = 0;
  std::uint64_t offset = 0;
};
struct RowState {
  bool is_live = false;   // the index leads to this very record
  bool replaces = false;  // and the segments may hold an older one
};
struct MovedRow {
  PlacedRow row;
  std::uint64_t to_segment = 0;
  std::uint64_t to_offset = 0;
  std::uint64_t size_bytes = 0;  // of the record
  policy::Usage usage;
};
struct Settled {
  std::vector<bool> is_moved;  // one for each row that was to be moved
  std::int64_t moved = 0;
  std::int64_t evicted = 0;
};

// Which rows a clear removed, for who keeps a copy of what the index says.
struct RemovedRows {
  struct Row {
    Digest128 context;
    std::string key;
    Sequence sequence = 0;
  };
  std::vector<Row> rows;
  bool is_complete = true;  // false: they were too many to name
};

class Index {
 public:
  // Makes an empty database at `path`, where no file may be; fast, but not safe against power
  // loss: sync the file before it is used.
  static Result<std::unique_ptr<Index>> create(fs::FileSystem& file_system,
                                               const std::string& path);
  // kCorruption: not a database, not ours, or not whole. A database of an older version is read as
  // it is; opened for writing (REQUIRES: the directory's lock is held), it becomes one of this
  // version, and `before_migration` is called first.
  static Result<std::unique_ptr<Index>> open(
      fs::FileSystem& file_system, const std::string& path, Database::Mode mode,
      std::int64_t patience_ms, const std::function<void()>& before_migration = nullptr);
  ~Index();

  Result<Location> find(const Digest128& context, std::string_view key);
  // For keys[rows[0]], keys[rows[1]] and so on: where each lies, if anywhere. All are answers from
  // one state of the database.
  Result<std::vector<std::optional<Location>>> find_all(const Digest128& context,
                                                        const std::vector<std::string_view>& keys,
                                                        const std::vector<std::size_t>& rows);
  // Whether a clear came after `sequence` for this entry.
  Result<bool> is_cleared(const Context& context, std::string_view key, Sequence sequence);

  // Adds or replaces rows, in one transaction; rows that were cleared meanwhile, or that a later
  // sequence has overtaken, are passed over. Returns how many replaced one. `taken` gets for each
  // row the sequence that it replaced (0: there was none), and nothing for one passed over.
  Result<std::int64_t> commit(const std::vector<NewRow>& rows,
                              std::vector<std::optional<Sequence>>* taken = nullptr);

  // Whether the segments may hold an older record of this entry; kNotFound: it is not `sequence`.
  Result<bool> replaces(const Digest128& context, std::string_view key, Sequence sequence);
  // Removes the row if it still has `sequence`. False: it has not.
  // `with_tombstone` is the segment that now holds a clear record for it.
  Result<bool> drop(const Digest128& context, std::string_view key, Sequence sequence,
                    std::optional<std::uint64_t> with_tombstone = std::nullopt);

  // Removes rows and remembers the clear, in one transaction. `plan` is told what the segments
  // hold then, before anything is committed; its failure undoes all. Returns the rows removed.
  using Plan = std::function<Result<SegmentPlan>(const std::vector<SegmentFacts>&)>;
  // `removed` gets what was removed.
  Result<std::int64_t> clear(const Clear& clear, const Plan& plan, RemovedRows* removed = nullptr);

  // What each segment holds of entries that were stored since then. Looks at every row: for a
  // connection that nobody else waits for.
  Result<std::vector<LiveBytes>> live_bytes(std::int64_t stored_since_us);
  // One for each of `rows`.
  Result<std::vector<RowState>> states_of(const std::vector<PlacedRow>& rows);
  // In one transaction: rows of `segment` lead to where their records were moved, others go. Rows
  // that no longer are as they are said to be are passed over. `tombstones`: segments that now
  // hold clear records for some of these.
  Result<Settled> settle(std::uint64_t segment, const std::vector<MovedRow>& moved,
                         const std::vector<PlacedRow>& evicted,
                         const std::vector<std::uint64_t>& tombstones);
  // Whether an entry whose sequence is at most `up_to` lies at such an offset. Looks at every row.
  Result<bool> leads_into(std::uint64_t segment, std::uint64_t begin, std::uint64_t end,
                          Sequence up_to);
  // What must be recorded elsewhere before the segment is forgotten, since it can no longer be read
  // there: that older records of entries that still lie in it are not to come back, and where it
  // `is_damaged` all clears that are known.
  Result<std::vector<Clear>> clears_to_record(std::uint64_t segment, bool is_damaged);
  // The segment is no longer the index's; returns the rows that still led there. `clears_moved_to`:
  // for each of its clear records, where it was written anew.
  Result<std::int64_t> forget_segment(std::uint64_t segment,
                                      const std::vector<std::uint64_t>& clears_moved_to);

  // For a rebuild: what a segment records of clears.
  Status restore_clears(std::uint64_t segment, const std::vector<Clear>& clears);
  // For a rebuild, once all segments were read: the narrow ones.
  Status apply_narrow_clears(const std::vector<Clear>& clears);

  // What Listing answers.
  Result<std::vector<ListedContext>> contexts();
  Result<std::vector<ListedEntry>> page(std::int64_t context, std::string_view from_key,
                                        std::size_t limit);

  Result<std::int64_t> count_entries();
  // No row ever had a greater one.
  Result<Sequence> last_sequence();
  // Where the last record lies of those that rows ever led to in this segment: what follows it is
  // not committed, or was by a later database. kSegmentHeaderSizeBytes: no row led into it. 0: not
  // known, as of segments that a version before 0.3.0 wrote.
  Result<std::uint64_t> last_offset(std::uint64_t segment);
  // Makes the WAL empty; false: somebody reads it at the moment. Waits for nobody.
  Result<bool> checkpoint();

 private:
  struct Statements;

  Index();
  // 0: there is none.
  Result<std::int64_t> known_context_id(const Digest128& digest) MODCACHE_REQUIRES(mutex_);
  Result<std::uint64_t> segment_of(std::int64_t id) MODCACHE_REQUIRES(mutex_);
  Result<Transaction> begin_writing() MODCACHE_REQUIRES(mutex_);
  Status prepare_reading() MODCACHE_REQUIRES(mutex_);
  Status prepare_writing() MODCACHE_REQUIRES(mutex_);
  Result<std::int64_t> context_id(const Context& context) MODCACHE_REQUIRES(mutex_);
  Result<std::int64_t> segment_id(std::uint64_t segment) MODCACHE_REQUIRES(mutex_);
  // What add_row() made of it: none when it was passed over, else what it replaced.
  Result<std::optional<Sequence>> add_row(const NewRow& row, std::int64_t context,
                                          std::int64_t segment) MODCACHE_REQUIRES(mutex_);
  Status mark_as_replacing(std::int64_t context, std::string_view key) MODCACHE_REQUIRES(mutex_);
  Status add_live_entries(std::int64_t segment, std::int64_t count) MODCACHE_REQUIRES(mutex_);
  Status raise_last_sequence(Sequence sequence) MODCACHE_REQUIRES(mutex_);
  // Where the last record of each segment begins, by the segment's id.
  using LastOffsets = std::map<std::uint64_t, std::uint64_t>;
  static void note_last(LastOffsets& offsets, std::uint64_t segment, std::uint64_t offset);
  Status raise_last_offsets(const LastOffsets& offsets) MODCACHE_REQUIRES(mutex_);
  Status raise_last_offset(std::uint64_t segment, std::uint64_t offset) MODCACHE_REQUIRES(mutex_);
  Result<std::vector<Clear>> clears_after(Sequence sequence) MODCACHE_REQUIRES(mutex_);
  Result<std::int64_t> remove_all() MODCACHE_REQUIRES(mutex_);
  Result<std::int64_t> remove_cleared(const Clear& clear, RemovedRows* removed)
      MODCACHE_REQUIRES(mutex_);
  Status remember_clear(const Clear& clear) MODCACHE_REQUIRES(mutex_);
  Status apply_plan(const SegmentPlan& plan) MODCACHE_REQUIRES(mutex_);
  Result<std::vector<SegmentFacts>> segment_facts() MODCACHE_REQUIRES(mutex_);

  Mutex mutex_;
  std::uint64_t fork_ticket_;
  std::unique_ptr<Database> database_ MODCACHE_GUARDED_BY(mutex_);
  std::unique_ptr<Statements> statements_ MODCACHE_GUARDED_BY(mutex_);
  bool is_writable_ MODCACHE_GUARDED_BY(mutex_) = false;
};

}  // namespace modcache::store
