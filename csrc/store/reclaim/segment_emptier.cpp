// SPDX-License-Identifier: Apache-2.0
#include "store/reclaim/segment_emptier.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/clock.h"
#include "store/entry/clear.h"
#include "store/entry/entry_id.h"
#include "store/index/segment_rows.h"
#include "store/reclaim/segment_beginning.h"
#include "store/segment/retired_segments.h"
#include "store/segment/tombstone.h"

namespace modcache::store {
namespace {

// Entries of one step; while they are committed no process can commit.
constexpr std::size_t kStepEntries = 1024;
// A clear record is kept this much longer than the last segment that may hold what it is about:
// what was put before it may have been written a little later, and clocks go wrong.
constexpr std::int64_t kClearsOutliveUs = 3'600'000'000;

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

// The change of the shared index that removes the row as it stands.
SharedIndex::Change removal_of(const PlacedRow& row) {
  return {address_of(row.context, row.key), row.sequence};
}

SharedIndex::Change move_of(const MovedRow& moved) {
  SharedIndex::Change change = removal_of(moved.row);
  change.usage = moved.usage;
  change.segment = moved.to_segment;
  change.offset = moved.to_offset;
  change.size_bytes = moved.size_bytes;
  change.instead_of = change.sequence;
  return change;
}

}  // namespace

// The plan for some records of the victim. `appended` borrows from `payloads` and `clears`.
struct SegmentEmptier::Step {
  std::vector<MovedRow> moved;
  std::vector<PlacedRow> evicted;
  std::vector<std::string> payloads;
  std::vector<Clear> clears;
  std::vector<NewRecord> appended;  // first those that are moved, then the clears
  std::uint64_t moved_bytes = 0;
  std::vector<std::uint64_t> tombstones;  // the segments that `clears` were appended to
};

Status SegmentEmptier::empty(ReclaimPass& pass, std::uint64_t segment) {
  committer_.leave_segment(segment);
  MODCACHE_ASSIGN_OR_RETURN(auto taken, Victim::take(attached_.directory(), segment));
  std::unique_ptr<Victim> victim = std::move(taken);
  while (true) {
    MODCACHE_ASSIGN_OR_RETURN(auto records, victim->next(kStepEntries));
    if (records.empty()) break;
    MODCACHE_RETURN_IF_ERROR(settle(pass, *victim, records));
    if (requests_.is_stopping()) return Status::busy("the store is closing");
  }
  return finish(pass, *victim);
}

Status SegmentEmptier::settle(ReclaimPass& pass, Victim& victim,
                              const std::vector<Victim::Record>& records) {
  Step step;
  // Payloads are read here, before any lock is taken.
  MODCACHE_RETURN_IF_ERROR(judge(pass, victim, records, step));
  if (step.moved.empty() && step.evicted.empty()) return Status::ok();

  MutexLock lock(committer_.mutex());
  budget_.measure();
  if (budget_.used_bytes() + step.moved_bytes > pass.most_bytes && step.moved_bytes > 0) {
    return Status::no_space("there is no room for what stays");
  }
  auto places = committer_.segments().append(step.appended);
  if (!places.is_ok()) {
    committer_.segments().release_left();
    return places.status();
  }
  for (std::size_t i = 0; i < places.value().size(); ++i) {
    const RecordPlace& place = places.value()[i];
    if (i >= step.moved.size()) {
      step.tombstones.push_back(place.segment);
      continue;
    }
    step.moved[i].to_segment = place.segment;
    step.moved[i].to_offset = place.offset;
  }
  pass.moved_bytes += step.moved_bytes;
  const Status status = commit(pass, victim, step);
  committer_.segments().release_left();
  return status;
}

Status SegmentEmptier::judge(ReclaimPass& pass, Victim& victim,
                             const std::vector<Victim::Record>& records, Step& step) {
  std::vector<PlacedRow> rows;
  rows.reserve(records.size());
  for (const Victim::Record& record : records) rows.push_back(placed(victim, record));
  MODCACHE_ASSIGN_OR_RETURN(auto states, states_of(attached_.writer(), rows));
  step.payloads.reserve(records.size());
  step.clears.reserve(records.size());
  for (std::size_t i = 0; i < records.size(); ++i) {
    const Victim::Record& record = records[i];
    if (!states[i].is_live) continue;
    policy::Usage usage;
    if (stays(pass, record, usage)) {
      std::string payload;
      const Status status = victim.read_payload(record, payload);
      if (status.code() == StatusCode::kIoError) return status;
      if (status.is_ok()) {
        step.payloads.push_back(std::move(payload));
        step.appended.push_back(moved_record(record, step.payloads.back()));
        step.moved.push_back({rows[i], 0, 0, record.head.record_size_bytes(), usage});
        step.moved_bytes += record.head.record_size_bytes();
        continue;
      }
    }
    step.evicted.push_back(rows[i]);
    pass.dead_bytes += record.head.record_size_bytes();
    // Some record always bears the last sequence: without it a rebuild takes records for lost.
    const bool is_last = attached_.control().bears_last_sequence(record.head.sequence);
    if (!states[i].replaces && !is_last) continue;
    step.clears.push_back(clear_of_replaced(*record.context, record.key, record.head.sequence));
  }
  for (const Clear& clear : step.clears) step.appended.push_back(tombstone_of(clear));
  return Status::ok();
}

bool SegmentEmptier::stays(const ReclaimPass& pass, const Victim::Record& record,
                           policy::Usage& usage) {
  const bool is_expired = record.head.stored_at_us < pass.expired_before_us;
  const bool is_enough = pass.sparing == Sparing::kAllLive || pass.dead_bytes >= pass.enough_bytes;
  const std::uint64_t rank = is_expired                       ? kAboveAllRanks
                             : is_enough                      ? 0
                             : pass.sparing == Sparing::kNone ? kAboveAllRanks
                                                              : pass.rank;
  const bool is_spared = usage_.is_spared(address_of(record.head.context, record.key),
                                          record.head.sequence, rank, usage);
  return is_spared || (is_enough && !is_expired);
}

Status SegmentEmptier::commit(ReclaimPass& pass, const Victim& victim, const Step& step) {
  MODCACHE_ASSIGN_OR_RETURN(auto directory_lock, committer_.lock_directory());
  SharedIndex& index = attached_.index();
  index.begin();
  auto settled =
      settle_rows(attached_.writer(), victim.id(), step.moved, step.evicted, step.tombstones);
  if (!settled.is_ok()) {
    committer_.undo(settled.status());
    return settled.status();
  }
  std::vector<SharedIndex::Change> changes;
  changes.reserve(step.moved.size() + step.evicted.size());
  for (std::size_t i = 0; i < step.moved.size(); ++i) {
    if (settled.value().is_moved[i]) changes.push_back(move_of(step.moved[i]));
  }
  for (const PlacedRow& row : step.evicted) changes.push_back(removal_of(row));
  index.apply(changes);
  index.commit(0);
  pass.evicted.entries += settled.value().evicted;
  if (settled.value().evicted > 0) attached_.control().add_eviction();
  committer_.keep_log_short();
  return Status::ok();
}

Status SegmentEmptier::finish(ReclaimPass& pass, const Victim& victim) {
  {
    MutexLock lock(committer_.mutex());
    const Status status = forget(pass, victim);
    // This comes last, because other processes assume that a segment without a lock has no clear
    // records but those that its row counts.
    committer_.segments().release_left();
    MODCACHE_RETURN_IF_ERROR(status);
  }
  attached_.control().add_reclaim();
  return Status::ok();
}

// Moved records must survive power loss before the segment goes from which they were moved.
Status SegmentEmptier::forget(ReclaimPass& pass, const Victim& victim) {
  MODCACHE_ASSIGN_OR_RETURN(auto clears_moved_to, move_clears(victim));
  MODCACHE_RETURN_IF_ERROR(committer_.segments().sync());
  MODCACHE_ASSIGN_OR_RETURN(auto directory_lock, committer_.lock_directory());
  MODCACHE_ASSIGN_OR_RETURN(auto left,
                            forget_segment(attached_.writer(), victim.id(), clears_moved_to));
  if (left > 0) attached_.index().discard();
  pass.evicted.entries += left;
  MODCACHE_RETURN_IF_ERROR(committer_.sync_log());
  return retire_segment(attached_.directory(), victim.id());
}

// Returns the segments that they were moved to.
Result<std::vector<std::uint64_t>> SegmentEmptier::move_clears(const Victim& victim) {
  std::vector<std::uint64_t> moved_to;
  MODCACHE_ASSIGN_OR_RETURN(auto unread,
                            clears_to_record(attached_.writer(), victim.id(), victim.is_damaged()));
  std::vector<Clear> clears = std::move(unread);
  const std::size_t most = clears.size() + victim.clears().size();
  clears.reserve(most);  // records borrow from them
  std::vector<NewRecord> records;
  records.reserve(most);
  for (const Clear& clear : clears) records.push_back(tombstone_of(clear));
  for (const Victim::ClearRecord& record : victim.clears()) {
    if (!is_needed(record, victim.id())) continue;
    clears.push_back(clear_of(record.head, record.scope, record.key_prefix));
    records.push_back(tombstone_of(clears.back()));
    records.back().head.stored_at_us = record.head.stored_at_us;
  }
  if (records.empty()) return moved_to;
  MODCACHE_ASSIGN_OR_RETURN(auto places, committer_.segments().append(records));
  for (const RecordPlace& place : places) moved_to.push_back(place.segment);
  return moved_to;
}

// Only live records are moved, so what a clear is about lies, if anywhere, in a segment that was
// begun before the clear.
bool SegmentEmptier::is_needed(const Victim::ClearRecord& clear, std::uint64_t victim) {
  const Directory& directory = attached_.directory();
  // Entries that were put before the clear may still be written, to a segment that is not there
  // yet.
  const std::int64_t outlived_us = clear.head.stored_at_us + kClearsOutliveUs;
  auto ids = directory.segments();
  if (!ids.is_ok() || attached_.control().bears_last_sequence(clear.head.sequence) ||
      now_us() <= outlived_us) {
    return true;
  }
  return std::any_of(ids.value().begin(), ids.value().end(), [&](std::uint64_t id) {
    if (id == victim) return false;
    const SegmentBeginning beginning = beginning_of(directory, id);
    return beginning.first_sequence <= clear.head.sequence ||
           beginning.created_at_us <= outlived_us;
  });
}

}  // namespace modcache::store
