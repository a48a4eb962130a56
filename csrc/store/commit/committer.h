// SPDX-License-Identifier: Apache-2.0
//
// Committer: changes of a directory that can be written. Every change holds two locks, each for a
// short time: mutex(), which the threads of this store share, and then the directory's lock, which
// all processes share. The committer also owns the segment that this store appends to.
//
// A change of the database takes these steps: lock_directory(), begin_removal() if entries may be
// removed or replaced, the statements, then either undo() or the same change of the shared index.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "base/mutex.h"
#include "base/result.h"
#include "store/attached/attached_directory.h"
#include "store/directory/directory_lock.h"
#include "store/entry/entry_id.h"
#include "store/segment/segment_writer.h"

namespace modcache::store {

class Committer {
 public:
  // The database's log is emptied when a commit leaves more than `most_log_bytes` in it.
  Committer(AttachedDirectory& attached, std::uint64_t segment_limit_bytes,
            std::uint64_t most_log_bytes);
  // Empties the log, unless another process is at it, so that the database is complete in itself.
  ~Committer();
  Committer(const Committer&) = delete;
  Committer& operator=(const Committer&) = delete;

  Mutex& mutex() MODCACHE_RETURNS_MUTEX(mutex_) { return mutex_; }
  SegmentWriter& segments() MODCACHE_REQUIRES(mutex_) { return segments_; }
  // The next record begins a new file, so that others can empty the one so far. With `segment`:
  // only if that is the one so far.
  void leave_segment(std::optional<std::uint64_t> segment = std::nullopt) MODCACHE_EXCLUDES(mutex_);

  // kBusy: another process holds the lock for longer than the store's patience. kIoError: the
  // directory was replaced, and nobody may commit to a database that is no longer the directory's.
  Result<DirectoryLock> lock_directory() MODCACHE_REQUIRES(mutex_);
  // Tells all processes of removals whose process died before it did.
  void look_for_untold_removals() MODCACHE_EXCLUDES(mutex_);

  // REQUIRES, of the next six: the directory's lock is held.
  void begin_removal() MODCACHE_REQUIRES(mutex_);
  // The statements failed with `status`.
  void undo(const Status& status) MODCACHE_REQUIRES(mutex_);
  // A record of this sequence was committed.
  void note_committed(Sequence sequence) MODCACHE_REQUIRES(mutex_);
  // Removes the row, and tells all processes if there was one.
  Status drop_row(const EntryId& id, Sequence sequence, std::optional<std::uint64_t> with_tombstone)
      MODCACHE_REQUIRES(mutex_);
  // Returns when all rows that were committed survive power loss.
  Status sync_log() MODCACHE_REQUIRES(mutex_);
  void keep_log_short() MODCACHE_REQUIRES(mutex_);

  // Store::drop() of an entry whose sequence is known.
  Status drop(const EntryId& id, Sequence sequence) MODCACHE_EXCLUDES(mutex_);

  // Returns when all that this store committed survives power loss. `failed_syncs` is how many had
  // failed before what the caller waits for was written.
  Status make_safe(std::uint64_t failed_syncs) MODCACHE_EXCLUDES(mutex_);
  std::uint64_t failed_syncs() const { return failed_syncs_.load(std::memory_order_relaxed); }

  // Returns the status that the caller of a store gets for a failure of the database. A broken
  // database is detached, since it is not a broken entry.
  Status as_index_failure(const Status& status) MODCACHE_EXCLUDES(mutex_);
  // Removes the database, so that whoever opens the directory next makes it anew.
  void detach_broken_database() MODCACHE_EXCLUDES(mutex_);

 private:
  Result<DirectoryLock> lock_directory(std::int64_t patience_ms) MODCACHE_REQUIRES(mutex_);
  void tell_of_removals() MODCACHE_REQUIRES(mutex_);
  void checkpoint_if_larger(std::uint64_t wal_bytes) MODCACHE_REQUIRES(mutex_);

  AttachedDirectory& attached_;
  const std::uint64_t most_log_bytes_;
  Mutex mutex_;
  SegmentWriter segments_ MODCACHE_GUARDED_BY(mutex_);
  Sequence last_committed_ MODCACHE_GUARDED_BY(mutex_) = 0;  // by this store
  // How long the log was when a reader kept it from being emptied; 0: the last attempt emptied it.
  std::uint64_t log_bytes_in_vain_ MODCACHE_GUARDED_BY(mutex_) = 0;
  std::atomic<std::uint64_t> failed_syncs_{0};
  Status failed_sync_ MODCACHE_GUARDED_BY(mutex_);  // the last
};

}  // namespace modcache::store
