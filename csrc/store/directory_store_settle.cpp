// SPDX-License-Identifier: Apache-2.0
//
// DirectoryStore: what becomes of the records of a segment that is being emptied.
#include <algorithm>
#include <utility>

#include "store/directory_store.h"
#include "store/index/tombstone.h"
#include "store/reclaim/gone_segments.h"
#include "store/reclaim/reclaim_pass.h"

namespace modcache::store {
namespace {

PlacedRow placed(const Victim& victim, const Victim::Record& record) {
  return {record.head.context, record.key, record.head.sequence, victim.id(), record.offset};
}

NewRecord moved_record(const Victim::Record& record, const std::string& payload) {
  NewRecord moved;
  moved.head = record.head;
  moved.context = record.context;
  moved.key = record.key;
  moved.header = record.header;
  moved.payload = payload.data();
  return moved;
}

// That the row is removed, as it stands.
SharedIndex::Change change_of(const PlacedRow& row) {
  SharedIndex::Change change;
  change.address = address_of(row.context, row.key);
  change.sequence = row.sequence;
  return change;
}

}  // namespace

// What becomes of one step's records. What `appended` names lies in `payloads` and `clears`.
struct DirectoryStore::Settling {
  std::vector<MovedRow> moved;
  std::vector<PlacedRow> evicted;
  std::vector<std::string> payloads;
  std::vector<Clear> clears;
  std::vector<NewRecord> appended;  // first those that are moved
  std::uint64_t moved_bytes = 0;
};

// Payloads are read before any lock is taken.
Status DirectoryStore::judge(Pass& pass, Sparing sparing, Victim& victim,
                             const std::vector<Victim::Record>& records, Settling& settling) {
  std::vector<PlacedRow> rows;
  rows.reserve(records.size());
  for (const Victim::Record& record : records) rows.push_back(placed(victim, record));
  auto states = opened_.writer->states_of(rows);
  if (!states.is_ok()) return states.status();
  settling.payloads.reserve(records.size());
  settling.clears.reserve(records.size());
  for (std::size_t i = 0; i < records.size(); ++i) {
    const Victim::Record& record = records[i];
    if (!states.value()[i].is_live) continue;
    policy::Usage usage;
    if (stays(pass, sparing, record, usage)) {
      std::string payload;
      const Status status = victim.read_payload(record, payload);
      if (status.code() == StatusCode::kIoError) return status;
      if (status.is_ok()) {
        settling.payloads.push_back(std::move(payload));
        settling.appended.push_back(moved_record(record, settling.payloads.back()));
        settling.moved.push_back({rows[i], 0, 0, record.head.record_size_bytes(), usage});
        settling.moved_bytes += record.head.record_size_bytes();
        continue;
      }
    }
    settling.evicted.push_back(rows[i]);
    pass.gone_bytes += record.head.record_size_bytes();
    // Some record always bears the last sequence: without it a rebuild takes records for lost.
    const bool is_last = opened_.control->bears_last_sequence(record.head.sequence);
    if (!states.value()[i].replaces && !is_last) continue;
    settling.clears.push_back(clear_of_replaced(*record.context, record.key, record.head.sequence));
  }
  for (const Clear& clear : settling.clears) settling.appended.push_back(tombstone_of(clear));
  return Status::ok();
}

Status DirectoryStore::settle(Pass& pass, Sparing sparing, Victim& victim,
                              const std::vector<Victim::Record>& records) {
  Settling settling;
  MODCACHE_RETURN_IF_ERROR(judge(pass, sparing, victim, records, settling));
  std::vector<MovedRow>& moved = settling.moved;
  if (moved.empty() && settling.evicted.empty()) return Status::ok();

  MutexLock lock(write_mutex_);
  budget_.measure();
  if (budget_.used_bytes() + settling.moved_bytes > pass.most_bytes && settling.moved_bytes > 0) {
    return Status::no_space("there is no room for what stays");
  }
  auto places = segments_.append(settling.appended);
  if (!places.is_ok()) {
    segments_.release_left();
    return places.status();
  }
  std::vector<std::uint64_t> tombstones;
  for (std::size_t i = 0; i < places.value().size(); ++i) {
    const RecordPlace& place = places.value()[i];
    if (i >= moved.size()) {
      tombstones.push_back(place.segment);
      continue;
    }
    moved[i].to_segment = place.segment;
    moved[i].to_offset = place.offset;
  }
  pass.moved_bytes += settling.moved_bytes;
  const Status status = commit_settled(pass, victim, moved, settling.evicted, tombstones);
  segments_.release_left();
  return status;
}

Status DirectoryStore::commit_settled(Pass& pass, const Victim& victim,
                                      const std::vector<MovedRow>& moved,
                                      const std::vector<PlacedRow>& evicted,
                                      const std::vector<std::uint64_t>& tombstones) {
  auto directory_lock = lock_directory();
  if (!directory_lock.is_ok()) return directory_lock.status();
  index_->begin();
  auto settled = opened_.writer->settle(victim.id(), moved, evicted, tombstones);
  if (!settled.is_ok()) {
    undo_in_index(settled.status());
    return settled.status();
  }
  std::vector<SharedIndex::Change> changes;
  changes.reserve(moved.size() + evicted.size());
  for (std::size_t i = 0; i < moved.size(); ++i) {
    if (!settled.value().is_moved[i]) continue;
    SharedIndex::Change change = change_of(moved[i].row);
    change.usage = moved[i].usage;
    change.segment = moved[i].to_segment;
    change.offset = moved[i].to_offset;
    change.size_bytes = moved[i].size_bytes;
    change.instead_of = change.sequence;
    changes.push_back(change);
  }
  for (const PlacedRow& row : evicted) changes.push_back(change_of(row));
  index_->apply(changes);
  index_->commit(0);
  pass.evicted.entries += settled.value().evicted;
  if (settled.value().evicted > 0) opened_.control->add_eviction();
  checkpoint_if_larger(budget_.most_log_bytes());
  return Status::ok();
}

// What was moved must survive power loss before what it was moved from is gone.
Status DirectoryStore::finish(Pass& pass, Victim& victim) {
  {
    MutexLock lock(write_mutex_);
    const Status status = forget_victim(pass, victim);
    // Not before: to others a segment without a lock has no clears but those of its row.
    segments_.release_left();
    MODCACHE_RETURN_IF_ERROR(status);
  }
  opened_.control->add_reclaim();
  return Status::ok();
}

Status DirectoryStore::forget_victim(Pass& pass, const Victim& victim) {
  auto clears_moved_to = move_clears(victim);
  if (!clears_moved_to.is_ok()) return clears_moved_to.status();
  MODCACHE_RETURN_IF_ERROR(segments_.sync());
  auto directory_lock = lock_directory();
  if (!directory_lock.is_ok()) return directory_lock.status();
  auto left = opened_.writer->forget_segment(victim.id(), clears_moved_to.value());
  if (!left.is_ok()) return left.status();
  if (left.value() > 0) index_->discard();
  pass.evicted.entries += left.value();
  MODCACHE_RETURN_IF_ERROR(sync_log());
  return make_gone(directory_, victim.id());
}

}  // namespace modcache::store
