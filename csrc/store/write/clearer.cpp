// SPDX-License-Identifier: Apache-2.0
#include "store/write/clearer.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "base/log.h"
#include "store/segment/retired_segments.h"
#include "store/segment/tombstone.h"

namespace modcache::store {

// Segments that hold nothing any more, locked so that no process adopts one meanwhile.
struct Clearer::Doomed {
  std::vector<std::unique_ptr<fs::File>> files;
  std::vector<std::uint64_t> ids;

  void try_add(const Directory& directory, std::uint64_t id) {
    auto file = directory.file_system().open(directory.segment_path(id), fs::OpenMode::kReadWrite);
    if (!file.is_ok()) return;
    auto is_locked = file.value()->try_lock();
    // Another process appends to it.
    if (!is_locked.is_ok() || !is_locked.value()) return;
    files.push_back(std::move(file).value());
    ids.push_back(id);
  }

  // A segment that is gone already is no failure.
  void retire_segment(const Directory& directory) const {
    for (const std::uint64_t id : ids) {
      const Status status = store::retire_segment(directory, id);
      if (status.is_ok() || status.is_not_found()) continue;
      log(LogLevel::kWarning, "unlink:" + directory.path(), status.message());
    }
  }
};

Result<SegmentPlan> Clearer::plan_segments(const Clear& clear,
                                           const std::vector<SegmentFacts>& facts, Doomed& doomed) {
  MODCACHE_ASSIGN_OR_RETURN(auto ids, attached_.directory().segments());
  std::map<std::uint64_t, SegmentFacts> known;
  for (const SegmentFacts& segment : facts) known[segment.id] = segment;
  SegmentPlan plan;
  for (const std::uint64_t id : ids) {
    const SegmentFacts& segment = known[id];
    // A rebuild must still find earlier clears, unless this one covers them.
    const bool is_needed =
        segment.live_entries > 0 || (segment.tombstones > 0 && !clear.filter.covers_everything());
    if (is_needed) continue;
    if (id == committer_.segments().segment()) {
      committer_.segments().leave_segment();
      committer_.segments().release_left();
    }
    doomed.try_add(attached_.directory(), id);
  }
  plan.forgotten = doomed.ids;
  for (const SegmentFacts& segment : facts) {
    const bool is_gone = !std::binary_search(ids.begin(), ids.end(), segment.id);
    if (is_gone && segment.live_entries == 0) plan.forgotten.push_back(segment.id);
  }
  // The clear record is written before anything is removed: if this process dies in between, a
  // rebuild must not bring back what the index no longer names. Where there is no segment yet,
  // another process may be about to write what it put before: only the first sequence has nothing
  // before it.
  if (!ids.empty() || clear.sequence > 1) {
    auto places = committer_.segments().append({tombstone_of(clear)});
    if (places.status().code() == StatusCode::kNoSpace && clear.filter.covers_everything()) {
      // People clear because a disk is full, so room comes first. If this process dies now, rows
      // lead to segments that are gone, which is a miss.
      doomed.retire_segment(attached_.directory());
      doomed.files.clear();  // segments that are held take their room all the same
      attached_.readers().forget_retired();
      (void)remove_retired(attached_.directory());
      places = committer_.segments().append({tombstone_of(clear)});
    }
    // Nothing is there to be cleared, and on a full disk nothing can be written late.
    if (places.status().code() == StatusCode::kNoSpace && ids.empty()) return plan;
    if (!places.is_ok()) return places.status();
    plan.with_tombstone = places.value().front().segment;
  }
  return plan;
}

// Counts the entries that were never committed, which the index will not count.
std::int64_t Clearer::count_unknown(const std::vector<QueuedPutPtr>& puts) {
  return std::count_if(puts.begin(), puts.end(), [this](const QueuedPutPtr& put) {
    return attached_.writer().find(put->context->digest, put->key).is_not_found();
  });
}

Result<std::int64_t> Clearer::clear(const ClearFilter& filter) {
  MODCACHE_RETURN_IF_ERROR(attached_.check_writable());
  auto removed = clear_index(filter);
  if (!removed.is_ok()) return committer_.as_index_failure(removed.status());
  return removed;
}

Result<std::int64_t> Clearer::clear_index(const ClearFilter& filter) {
  MutexLock lock(committer_.mutex());
  MODCACHE_ASSIGN_OR_RETURN(auto directory_lock, committer_.lock_directory());
  // Before the sequence, too: whoever begins after it must see that what it knows may be outdated.
  attached_.control().add_removal();
  MODCACHE_ASSIGN_OR_RETURN(auto sequence, attached_.control().next_sequence());
  const Clear clear{filter, sequence};
  const std::int64_t queued = count_unknown(queue_.remove(clear));
  Doomed doomed;
  RemovedRows rows;
  committer_.begin_removal();
  auto removed = clear_rows(
      attached_.writer(), clear,
      [&](const std::vector<SegmentFacts>& facts)
          MODCACHE_LOCKS_UNCHECKED { return plan_segments(clear, facts, doomed); },
      &rows);
  committer_.segments().release_left();
  if (!removed.is_ok()) {
    committer_.undo(removed.status());
    return removed;
  }
  mirror_.clear(clear, rows);
  committer_.note_committed(clear.sequence);
  attached_.control().raise_superseded(clear.sequence - 1);
  attached_.control().add_clear();
  attached_.control().add_removal();
  attached_.control().set_removal_pending(false);
  doomed.retire_segment(attached_.directory());
  if (!doomed.ids.empty()) attached_.control().add_reclaim();
  attached_.forget_retired();
  auto retired = remove_retired(attached_.directory());
  if (retired.is_ok() && retired.value().held_bytes > 0) requests_.ask(0, false);
  budget_.measure();
  return removed.value() + queued;
}

}  // namespace modcache::store
