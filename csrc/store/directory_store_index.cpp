// SPDX-License-Identifier: Apache-2.0
//
// DirectoryStore: keeping the shared index (shared_index.h) as the database is.
#include <algorithm>
#include <chrono>
#include <utility>

#include "store/directory_store.h"
#include "store/segment/record.h"

namespace modcache::store {
namespace {

// A table for so few is made while the directory is opened, which takes milliseconds.
constexpr std::int64_t kFewEntries = 4096;
// In a smaller directory the policies of each process are on their own: the file would be a large
// part of it.
constexpr std::uint64_t kLeastBytesForPolicyState = 64 << 20;
// Between two attempts to make a table: each writes a file.
constexpr std::chrono::seconds kLeastPause{1};
constexpr std::chrono::minutes kMostPause{5};

std::uint64_t record_size(const NewRow& row) {
  RecordHead head;
  head.key_size_bytes = static_cast<std::uint32_t>(row.key.size());
  head.header_size_bytes = row.location.header_size_bytes;
  head.payload_size_bytes = row.location.payload_size_bytes;
  return head.record_size_bytes();
}

}  // namespace

// Its failure costs time and nothing else: the database answers.
void DirectoryStore::prepare_index() {
  MutexLock lock(write_mutex_);
  auto directory_lock = lock_directory();
  if (!directory_lock.is_ok()) return;
  auto last_sequence = opened_.writer->last_sequence();
  auto entries = opened_.writer->count_entries();
  if (!last_sequence.is_ok() || !entries.is_ok()) return;
  index_->share_policy_state(budget_.used_bytes() >= kLeastBytesForPolicyState);
  index_->check(last_sequence.value());
  if (!index_->needs_building()) return;
  if (entries.value() == 0) return index_->reset(last_sequence.value());
  if (entries.value() > kFewEntries) return;
  auto builder = IndexMapBuilder::start(directory_, *index_, options_.patience_ms);
  if (!builder.is_ok()) return;
  while (builder.value()->read_rows().is_ok() && builder.value()->add_rows() &&
         !index_->has_all()) {
  }
}

// One part of a table that is being made, or the beginning of a new one. Between two parts others
// write.
void DirectoryStore::build_part_of_index() {
  if (!is_building_index() && (Clock::now() < next_build_ || !is_attached())) return;
  const Status read = is_building_index() ? builder_->read_rows() : Status::ok();
  MutexLock lock(write_mutex_);
  if (!read.is_ok()) {
    builder_ = nullptr;
    return;
  }
  next_build_ = Clock::now() + kLeastPause;
  if (!is_building_index() && !index_->needs_building()) return;
  auto directory_lock = lock_directory();
  if (!directory_lock.is_ok()) return;
  if (is_building_index()) {
    if (!builder_->add_rows() || index_->has_all()) builder_ = nullptr;
    return;
  }
  build_pause_ = std::clamp<Clock::duration>(2 * build_pause_, kLeastPause, kMostPause);
  next_build_ = Clock::now() + build_pause_;
  auto builder = IndexMapBuilder::start(directory_, *index_, options_.patience_ms);
  if (builder.is_ok()) builder_ = std::move(builder).value();
}

void DirectoryStore::commit_to_index(const std::vector<NewRow>& rows,
                                     const std::vector<std::optional<Sequence>>& taken) {
  std::vector<SharedIndex::Change> changes;
  changes.reserve(rows.size());
  Sequence last = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Location& location = rows[i].location;
    last = std::max(last, location.sequence);
    if (!taken[i]) continue;
    SharedIndex::Change change;
    change.address = address_of(rows[i].context->digest, rows[i].key);
    change.segment = location.segment;
    change.offset = location.offset;
    change.sequence = location.sequence;
    change.size_bytes = record_size(rows[i]);
    change.instead_of = *taken[i];
    change.usage = usage_of_new(change.address);
    changes.push_back(change);
  }
  index_->apply(changes);
  index_->commit(last);
}

void DirectoryStore::clear_in_index(const Clear& clear, const RemovedRows& removed) {
  if (!removed.is_complete) {
    auto left = opened_.writer->count_entries();
    if (left.is_ok() && left.value() == 0) return index_->reset(clear.sequence);
    return index_->discard();
  }
  std::vector<SharedIndex::Change> changes;
  changes.reserve(removed.rows.size());
  for (const RemovedRows::Row& row : removed.rows) {
    SharedIndex::Change change;
    change.address = address_of(row.context, row.key);
    change.sequence = row.sequence;
    changes.push_back(change);
  }
  index_->apply(changes);
  index_->commit(clear.sequence);
}

// After these failures the database is as it was; after others nobody knows, and whoever has the
// directory's lock next tells of removals.
void DirectoryStore::undo_in_index(const Status& status) {
  if (status.code() == StatusCode::kBusy || status.code() == StatusCode::kNoSpace) {
    index_->cancel();
    opened_.control->set_removal_pending(false);
  } else {
    index_->discard();
  }
}

}  // namespace modcache::store
