// SPDX-License-Identifier: Apache-2.0
#include "store/commit/committer.h"

#include <algorithm>
#include <utility>

#include "store/recovery/recovery.h"

namespace modcache::store {
namespace {

// A flush leaves this much of the log: it is little beside the entries, and strict puts, which
// flush each time, then empty the log only once for many.
constexpr std::uint64_t kWalBytesAtFlush = 128 << 10;

}  // namespace

Committer::Committer(AttachedDirectory& attached, std::uint64_t segment_limit_bytes,
                     std::uint64_t most_log_bytes)
    : attached_(attached),
      most_log_bytes_(most_log_bytes),
      segments_(attached.directory(), segment_limit_bytes) {}

Committer::~Committer() {
  if (attached_.is_read_only() || !attached_.is_attached()) return;
  MutexLock lock(mutex_);
  auto directory_lock = DirectoryLock::take(attached_.lock_file(), 0);
  if (directory_lock.is_ok()) checkpoint_if_larger(0);
}

void Committer::leave_segment(std::optional<std::uint64_t> segment) {
  MutexLock lock(mutex_);
  if (segment && *segment != segments_.segment()) return;
  segments_.leave_segment();
  segments_.release_left();
}

Result<DirectoryLock> Committer::lock_directory() {
  return lock_directory(attached_.options().patience_ms);
}

Result<DirectoryLock> Committer::lock_directory(std::int64_t patience_ms) {
  MODCACHE_ASSIGN_OR_RETURN(auto lock, DirectoryLock::take(attached_.lock_file(), patience_ms));
  attached_.look_again();
  if (!attached_.check_attached()) {
    return Status::io_error("'" + attached_.directory().path() + "' was replaced");
  }
  if (attached_.control().is_removal_pending()) tell_of_removals();
  return lock;
}

// A process died between a commit and telling of it, or could not learn whether its commit was
// done. Nobody knows what it removed, so it may have been anything.
void Committer::tell_of_removals() {
  ControlPage& control = attached_.control();
  auto last = attached_.writer().last_sequence();
  if (last.is_ok()) {
    control.raise_committed(last.value());
    control.raise_superseded(last.value());
  }
  attached_.index().discard();  // first: processes ask it once they see that something was removed
  control.add_clear();
  control.add_removal();
  control.set_removal_pending(false);
}

void Committer::look_for_untold_removals() {
  if (!attached_.control().is_removal_pending()) return;
  MutexLock lock(mutex_);
  // A process that has the lock is about to tell.
  (void)lock_directory(0);
}

void Committer::begin_removal() {
  attached_.control().set_removal_pending(true);
  attached_.index().begin();
}

// After these two failures the database is as it was. After others nobody knows, and whoever has
// the directory's lock next tells of removals.
void Committer::undo(const Status& status) {
  if (status.code() == StatusCode::kBusy || status.code() == StatusCode::kNoSpace) {
    attached_.index().cancel();
    attached_.control().set_removal_pending(false);
  } else {
    attached_.index().discard();
  }
}

void Committer::note_committed(Sequence sequence) {
  attached_.control().raise_committed(sequence);
  last_committed_ = std::max(last_committed_, sequence);
}

Status Committer::drop_row(const EntryId& id, Sequence sequence,
                           std::optional<std::uint64_t> with_tombstone) {
  SharedIndex& index = attached_.index();
  begin_removal();
  auto is_dropped = attached_.writer().drop(id.context.digest, id.key, sequence, with_tombstone);
  if (!is_dropped.is_ok()) {
    undo(is_dropped.status());
    return is_dropped.status();
  }
  if (is_dropped.value()) index.apply({{id.address, sequence}});
  index.commit(0);
  if (is_dropped.value()) attached_.control().add_removal();
  attached_.control().set_removal_pending(false);
  return Status::ok();
}

Status Committer::drop(const EntryId& id, Sequence sequence) {
  MutexLock lock(mutex_);
  MODCACHE_ASSIGN_OR_RETURN(auto directory_lock, lock_directory());
  auto with_tombstone = append_clear_of_dropped(attached_.writer(), attached_.control(), segments_,
                                                id.context, id.key, sequence);
  segments_.release_left();
  if (with_tombstone.is_not_found()) return Status::ok();
  if (!with_tombstone.is_ok()) return with_tombstone.status();
  return drop_row(id, sequence, with_tombstone.value());
}

// The order is: bytes of the segments, then the names of the files, then the rows that lead to
// them.
Status Committer::make_safe(std::uint64_t failed_syncs) {
  MutexLock lock(mutex_);
  Status synced = segments_.sync();
  if (!synced.is_ok()) {
    failed_syncs_.fetch_add(1, std::memory_order_relaxed);
    failed_sync_ = std::move(synced);
    return failed_sync_;
  }
  // The kernel tells of a lost write once: a sync that failed meanwhile may have told of what this
  // caller waits for.
  if (failed_syncs_.load(std::memory_order_relaxed) != failed_syncs) return failed_sync_;
  // Without the lock a commit or checkpoint could move rows between log and database meanwhile.
  MODCACHE_ASSIGN_OR_RETURN(auto directory_lock, lock_directory());
  MODCACHE_RETURN_IF_ERROR(sync_log());
  attached_.control().raise_confirmed(last_committed_);
  checkpoint_if_larger(std::min(kWalBytesAtFlush, most_log_bytes_));
  return Status::ok();
}

Status Committer::sync_log() {
  const Directory& directory = attached_.directory();
  fs::FileSystem& file_system = directory.file_system();
  // Rows are in the log, or in the database, which SQLite synced before it emptied the log.
  auto wal = file_system.open(directory.wal_path(), fs::OpenMode::kRead);
  if (!wal.is_ok() && !wal.is_not_found()) return wal.status();
  if (wal.is_ok()) MODCACHE_RETURN_IF_ERROR(wal.value()->sync_data());
  return file_system.sync_directory(directory.path());
}

void Committer::keep_log_short() { checkpoint_if_larger(most_log_bytes_); }

// A failure loses nothing: the log is only longer than it need be. Each attempt syncs, so while a
// reader keeps the log from being emptied the next attempt waits until the log is twice as long.
void Committer::checkpoint_if_larger(std::uint64_t wal_bytes) {
  const Directory& directory = attached_.directory();
  auto info = directory.file_system().info(directory.wal_path());
  if (!info.is_ok()) return;
  const std::uint64_t size_bytes = info.value().size_bytes;
  const bool was_in_vain = size_bytes >= log_bytes_in_vain_ && size_bytes < 2 * log_bytes_in_vain_;
  if (size_bytes <= wal_bytes || (was_in_vain && wal_bytes > 0)) return;
  auto is_empty = attached_.writer().checkpoint();
  log_bytes_in_vain_ = is_empty.is_ok() && !is_empty.value() ? size_bytes : 0;
}

Status Committer::as_index_failure(const Status& status) {
  if (status.code() != StatusCode::kCorruption) return status;
  detach_broken_database();
  return Status::io_error("'" + attached_.directory().database_path() + "' is damaged (" +
                          status.message() +
                          "); it is made anew from the segments when the directory is opened next");
}

void Committer::detach_broken_database() {
  if (!attached_.is_attached() || attached_.is_read_only()) {
    attached_.detach();
    return;
  }
  MutexLock lock(mutex_);
  auto directory_lock = DirectoryLock::take(attached_.lock_file(), attached_.options().patience_ms);
  attached_.look_again();
  // Another process may have replaced the database already; a whole one must not be removed.
  const bool is_ours = directory_lock.is_ok() && attached_.check_attached();
  attached_.detach();
  if (!is_ours) return;
  attached_.control().renew_epoch();
  (void)remove_database(attached_.directory());  // if that fails, it is found broken again
}

}  // namespace modcache::store
