// SPDX-License-Identifier: Apache-2.0
//
// DirectoryStore::clear.
#include <algorithm>
#include <map>
#include <utility>

#include "base/log.h"
#include "store/directory_store.h"
#include "store/index/tombstone.h"
#include "store/reclaim/gone_segments.h"

namespace modcache::store {

// Segments that hold nothing any more, locked so that no process adopts one meanwhile.
struct DirectoryStore::Doomed {
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

  // Those that are gone already are left out.
  void make_gone(const Directory& directory) const {
    for (const std::uint64_t id : ids) {
      const Status status = store::make_gone(directory, id);
      if (status.is_ok() || status.is_not_found()) continue;
      log(LogLevel::kWarning, "unlink:" + directory.path(), status.message());
    }
  }
};

Result<SegmentPlan> DirectoryStore::plan_clear(const Clear& clear,
                                               const std::vector<SegmentFacts>& facts,
                                               Doomed& doomed) {
  auto ids = directory_.segments();
  if (!ids.is_ok()) return ids.status();
  std::map<std::uint64_t, SegmentFacts> known;
  for (const SegmentFacts& segment : facts) known[segment.id] = segment;
  SegmentPlan plan;
  for (const std::uint64_t id : ids.value()) {
    const SegmentFacts& segment = known[id];
    // Earlier clears must still be found in a rebuild, unless this one covers them.
    const bool is_needed =
        segment.live_entries > 0 || (segment.tombstones > 0 && !clear.filter.covers_everything());
    if (is_needed) continue;
    if (id == segments_.segment()) {
      segments_.leave_segment();
      segments_.release_left();
    }
    doomed.try_add(directory_, id);
  }
  plan.forgotten = doomed.ids;
  for (const SegmentFacts& segment : facts) {
    const bool is_gone = !std::binary_search(ids.value().begin(), ids.value().end(), segment.id);
    if (is_gone && segment.live_entries == 0) plan.forgotten.push_back(segment.id);
  }
  // Written before anything is removed: if this process dies in between, a rebuild must not
  // bring back what the index no longer names. Where there is no segment yet, another process may
  // be about to write what it put before: only the first sequence has nothing before it.
  if (!ids.value().empty() || clear.sequence > 1) {
    auto places = segments_.append({tombstone_of(clear)});
    if (places.status().code() == StatusCode::kNoSpace && clear.filter.covers_everything()) {
      // A full disk is what people clear for, so room comes first. Should this process die now,
      // rows lead to segments that are gone, which is a miss.
      doomed.make_gone(directory_);
      doomed.files.clear();  // what is held takes its room all the same
      readers_.forget_gone();
      (void)remove_gone(directory_);
      places = segments_.append({tombstone_of(clear)});
    }
    // Nothing is there to be cleared, and on a full disk nothing can be written late.
    if (places.status().code() == StatusCode::kNoSpace && ids.value().empty()) return plan;
    if (!places.is_ok()) return places.status();
    plan.with_tombstone = places.value().front().segment;
  }
  return plan;
}

// Entries that were never committed: the index will not count them.
std::int64_t DirectoryStore::count_unknown(const std::vector<QueuedPutPtr>& puts) {
  return std::count_if(puts.begin(), puts.end(), [this](const QueuedPutPtr& put) {
    return opened_.writer->find(put->context->digest, put->key).is_not_found();
  });
}

Result<std::int64_t> DirectoryStore::clear(const ClearFilter& filter) {
  if (is_read_only()) return Status::io_error("'" + directory_.path() + "' can only be read");
  auto removed = clear_index(filter);
  if (!removed.is_ok()) return as_index_failure(removed.status());
  return removed;
}

Result<std::int64_t> DirectoryStore::clear_index(const ClearFilter& filter) {
  MutexLock lock(write_mutex_);
  auto directory_lock = lock_directory();
  if (!directory_lock.is_ok()) return directory_lock.status();
  auto sequence = opened_.control->next_sequence();
  if (!sequence.is_ok()) return sequence.status();
  const Clear clear{filter, sequence.value()};
  const std::int64_t queued = count_unknown(queue_.remove(clear));
  Doomed doomed;
  RemovedRows rows;
  opened_.control->set_removal_pending(true);
  index_->begin();
  auto removed = opened_.writer->clear(
      clear,
      [&](const std::vector<SegmentFacts>& facts)
          MODCACHE_LOCKS_UNCHECKED { return plan_clear(clear, facts, doomed); },
      &rows);
  segments_.release_left();
  if (!removed.is_ok()) {
    undo_in_index(removed.status());
    return removed;
  }
  clear_in_index(clear, rows);
  opened_.control->raise_committed(clear.sequence);
  last_committed_ = std::max(last_committed_, clear.sequence);
  opened_.control->raise_superseded(clear.sequence - 1);
  opened_.control->add_clear();
  opened_.control->add_removal();
  opened_.control->set_removal_pending(false);
  doomed.make_gone(directory_);
  if (!doomed.ids.empty()) opened_.control->add_reclaim();
  let_go_of_gone();
  auto gone = remove_gone(directory_);
  if (gone.is_ok() && gone.value().held_bytes > 0) ask_for_room(0, false);
  budget_.measure();
  return removed.value() + queued;
}

}  // namespace modcache::store
