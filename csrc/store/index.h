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
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "store/database.h"
#include "store/store.h"

namespace modcache::store {

inline constexpr std::int64_t kApplicationId = 0x6d6f6463;  // "modc"
inline constexpr std::int64_t kUserVersion = 1;

// Where an entry's record lies, and what it must say.
struct Location {
  std::uint64_t segment = 0;
  std::uint64_t offset = 0;
  std::uint32_t header_size_bytes = 0;
  std::uint64_t payload_size_bytes = 0;
  Sequence sequence = 0;
  std::int64_t run_us = 0;
};

// Borrowed.
struct NewRow {
  const Context* context;
  std::string_view key;
  Location location;
  std::int64_t stored_at_us;
};

// A clear that was done, or is about to be.
struct Clear {
  ClearFilter filter;
  Sequence sequence = 0;  // entries with a smaller one are gone
};

bool is_cleared_by(const Clear& clear, const Context& context, std::string_view key,
                   Sequence sequence);

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

class Index {
 public:
  // Makes an empty database at `path`, where no file may be; fast, but not safe against power
  // loss: sync the file before it is used.
  static Result<std::unique_ptr<Index>> create(const std::string& path);
  // kCorruption: not a database, not ours, or not whole.
  static Result<std::unique_ptr<Index>> open(const std::string& path, Database::Mode mode,
                                             std::int64_t patience_ms);
  // A second connection to a database that this process has open and has just checked.
  static Result<std::unique_ptr<Index>> open_again(const std::string& path,
                                                   std::int64_t patience_ms);
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
  // sequence has overtaken, are passed over. Returns how many replaced one.
  Result<std::int64_t> commit(const std::vector<NewRow>& rows);

  // Removes the row if it still has `sequence`. False: it has not.
  Result<bool> drop(const Digest128& context, std::string_view key, Sequence sequence);

  // Removes rows and remembers the clear, in one transaction. `plan` is told what the segments
  // hold then, before anything is committed; its failure undoes all. Returns the rows removed.
  using Plan = std::function<Result<SegmentPlan>(const std::vector<SegmentFacts>&)>;
  Result<std::int64_t> clear(const Clear& clear, const Plan& plan);

  // For a rebuild: what a segment records of clears.
  Status restore_clears(std::uint64_t segment, const std::vector<Clear>& clears);

  Result<std::int64_t> count_entries();
  // No row ever had a greater one.
  Result<Sequence> last_sequence();
  // Makes the WAL empty, if nobody reads it at the moment.
  Status checkpoint();

 private:
  struct Statements;

  Index();
  Status connect(const std::string& path, Database::Mode mode, std::int64_t patience_ms)
      MODCACHE_REQUIRES(mutex_);
  // 0: there is none.
  Result<std::int64_t> known_context_id(const Digest128& digest) MODCACHE_REQUIRES(mutex_);
  Result<std::uint64_t> segment_of(std::int64_t id) MODCACHE_REQUIRES(mutex_);
  Status prepare(Database::Mode mode) MODCACHE_REQUIRES(mutex_);
  Status prepare_statements() MODCACHE_REQUIRES(mutex_);
  Result<std::int64_t> context_id(const Context& context) MODCACHE_REQUIRES(mutex_);
  Result<std::int64_t> segment_id(std::uint64_t segment) MODCACHE_REQUIRES(mutex_);
  Result<bool> add_row(const NewRow& row, std::int64_t context, std::int64_t segment)
      MODCACHE_REQUIRES(mutex_);
  Status add_live_entries(std::int64_t segment, std::int64_t count) MODCACHE_REQUIRES(mutex_);
  Status raise_last_sequence(Sequence sequence) MODCACHE_REQUIRES(mutex_);
  Result<std::vector<Clear>> clears_after(Sequence sequence) MODCACHE_REQUIRES(mutex_);
  Result<std::int64_t> remove_all() MODCACHE_REQUIRES(mutex_);
  Result<std::int64_t> remove_cleared(const Clear& clear) MODCACHE_REQUIRES(mutex_);
  Status remember_clear(const Clear& clear) MODCACHE_REQUIRES(mutex_);
  Status apply_plan(const SegmentPlan& plan) MODCACHE_REQUIRES(mutex_);
  Result<std::vector<SegmentFacts>> segment_facts() MODCACHE_REQUIRES(mutex_);

  Mutex mutex_;
  std::uint64_t fork_ticket_;
  std::unique_ptr<Database> database_ MODCACHE_GUARDED_BY(mutex_);
  std::unique_ptr<Statements> statements_ MODCACHE_GUARDED_BY(mutex_);
};

}  // namespace modcache::store
