// SPDX-License-Identifier: Apache-2.0
//
// Index: the SQLite database of a directory, which knows the location of each entry. It is the
// source of truth: an entry that it does not name does not exist.
//
// Thread-safe: one mutex, held across fork, guards the connection. Whatever writes requires the
// directory's lock (directory_lock.h), which keeps writers of other processes out.
// Any method may return kCorruption, which means that the database itself is broken.
//
// Clears stand in clearing.h, what empties segments in segment_rows.h, listings in listed.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/mutex.h"
#include "base/result.h"
#include "fs/file_system.h"
#include "store/entry/entry_id.h"
#include "store/index/database.h"
#include "store/segment/location.h"

namespace modcache::store {

inline constexpr std::int64_t kApplicationId = 0x6d6f6463;  // "modc"
inline constexpr std::int64_t kUserVersion = 3;

// A row to commit; borrowed.
struct NewRow {
  const Context* context;
  std::string_view key;
  Location location;
  std::int64_t stored_at_us;
  bool replaces = false;  // counts as replacing even if no older row is known
  // A clear after it covers the entry; nullopt: the sequence of the location.
  std::optional<Sequence> begun_at = std::nullopt;
  Digest128 address{};  // of the entry: not stored, but needed to update copies of the index
};

class Tables;

class Index {
 public:
  // Creates an empty database at `path`, where no file may be. This is fast, but not safe against
  // power loss, so the file must be synced before it is used.
  static Result<std::unique_ptr<Index>> create(fs::FileSystem& file_system,
                                               const std::string& path);
  // Opens a database. kCorruption: it is not a database, not ours, or damaged. kUnsupportedVersion:
  // another modcache wrote it.
  static Result<std::unique_ptr<Index>> open(fs::FileSystem& file_system, const std::string& path,
                                             Database::Mode mode, std::int64_t patience_ms);
  ~Index();

  Result<Location> find(const Digest128& context, std::string_view key);
  // Returns the locations of keys[rows[0]], keys[rows[1]] and so on; nothing for those that do not
  // exist. All are read from one state of the database.
  Result<std::vector<std::optional<Location>>> find_all(const Digest128& context,
                                                        std::span<const std::string_view> keys,
                                                        const std::vector<std::size_t>& rows);
  // Returns whether a clear after `sequence` covers this entry.
  Result<bool> is_cleared(const Context& context, std::string_view key, Sequence sequence);

  // Adds or replaces rows in one transaction. Skips rows that were cleared meanwhile or that a
  // later sequence has overtaken. Returns how many replaced an older row. `taken` gets for each row
  // the sequence that it replaced (0: none), and nothing for a row that was skipped.
  Result<std::int64_t> commit(const std::vector<NewRow>& rows,
                              std::vector<std::optional<Sequence>>* taken = nullptr);

  // Returns whether the segments may hold an older record of this entry; kNotFound when its
  // sequence is not `sequence`.
  Result<bool> replaces(const Digest128& context, std::string_view key, Sequence sequence);
  // Removes the row if it still has `sequence`, and returns whether it did. `with_tombstone` is the
  // segment that now holds a clear record for it.
  Result<bool> drop(const Digest128& context, std::string_view key, Sequence sequence,
                    std::optional<std::uint64_t> with_tombstone = std::nullopt);

  Result<std::int64_t> count_entries();
  // Returns a sequence that no row ever exceeded.
  Result<Sequence> last_sequence();
  // Returns the offset of the last record in this segment that a row ever led to. Records after it
  // were not committed, or only to a later database. kSegmentHeaderSizeBytes: no row ever led
  // there. 0: not known.
  Result<std::uint64_t> last_offset(std::uint64_t segment);
  // Empties the WAL. Returns false when somebody is reading it; waits for nobody.
  Result<bool> checkpoint();

 private:
  friend class IndexLock;
  Index();

  Mutex mutex_;
  std::uint64_t fork_registration_;
  std::unique_ptr<Tables> tables_ MODCACHE_GUARDED_BY(mutex_);
};

// Lends the tables of an index to the functions beside it, and keeps others from it meanwhile.
class IndexLock {
 public:
  // Clang does not see that this object holds the mutex for as long as anybody has the tables.
  explicit IndexLock(Index& index) MODCACHE_LOCKS_UNCHECKED : lock_(index.mutex_),
                                                              tables_(*index.tables_) {}
  Tables* operator->() const { return &tables_; }
  Tables& operator*() const { return tables_; }

 private:
  MutexLock lock_;
  Tables& tables_;
};

}  // namespace modcache::store
