// SPDX-License-Identifier: Apache-2.0
#include "store/write/index_mirror.h"

#include <algorithm>
#include <utility>

#include "store/segment/location.h"
#include "store/segment/record.h"

namespace modcache::store {
namespace {

// A table for so few entries is made while the directory is opened, which takes milliseconds.
constexpr std::int64_t kFewEntries = 4096;
// In a smaller directory each process has a policy of its own: the file that they share would be a
// large part of it.
constexpr std::uint64_t kLeastBytesForPolicyState = 64 << 20;
// The time between two attempts to make a table, each of which writes a file.
constexpr std::chrono::seconds kLeastPause{1};
constexpr std::chrono::minutes kMostPause{5};

}  // namespace

void IndexMirror::prepare(std::uint64_t used_bytes) {
  MutexLock lock(committer_.mutex());
  auto directory_lock = committer_.lock_directory();
  if (!directory_lock.is_ok()) return;
  auto last_sequence = attached_.writer().last_sequence();
  auto entries = attached_.writer().count_entries();
  if (!last_sequence.is_ok() || !entries.is_ok()) return;
  attached_.index().share_policy_state(used_bytes >= kLeastBytesForPolicyState);
  attached_.index().check(last_sequence.value());
  if (!attached_.index().needs_building()) return;
  if (entries.value() == 0) return attached_.index().reset(last_sequence.value());
  if (entries.value() > kFewEntries) return;
  auto builder = IndexMapBuilder::start(attached_.directory(), attached_.index(),
                                        attached_.options().patience_ms);
  if (!builder.is_ok()) return;
  while (builder.value()->read_rows().is_ok() && builder.value()->add_rows() &&
         !attached_.index().has_all()) {
  }
}

void IndexMirror::build_part() {
  if (!is_building() && (Clock::now() < next_build_ || !attached_.is_attached())) return;
  const Status read = is_building() ? builder_->read_rows() : Status::ok();
  MutexLock lock(committer_.mutex());
  if (!read.is_ok()) {
    builder_ = nullptr;
    return;
  }
  next_build_ = Clock::now() + kLeastPause;
  if (!is_building() && !attached_.index().needs_building()) return;
  auto directory_lock = committer_.lock_directory();
  if (!directory_lock.is_ok()) return;
  if (is_building()) {
    if (!builder_->add_rows() || attached_.index().has_all()) builder_ = nullptr;
    return;
  }
  build_pause_ = std::clamp<Clock::duration>(2 * build_pause_, kLeastPause, kMostPause);
  next_build_ = Clock::now() + build_pause_;
  auto builder = IndexMapBuilder::start(attached_.directory(), attached_.index(),
                                        attached_.options().patience_ms);
  if (builder.is_ok()) builder_ = std::move(builder).value();
}

void IndexMirror::commit(const std::vector<NewRow>& rows,
                         const std::vector<std::optional<Sequence>>& taken) {
  std::vector<SharedIndex::Change> changes;
  changes.reserve(rows.size());
  Sequence last = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Location& location = rows[i].location;
    last = std::max(last, location.sequence);
    if (!taken[i]) continue;
    SharedIndex::Change change;
    change.address = rows[i].address;
    change.segment = location.segment;
    change.offset = location.offset;
    change.sequence = location.sequence;
    change.size_bytes = record_size_bytes(rows[i].key.size(), location.header_size_bytes,
                                          location.payload_size_bytes);
    change.instead_of = *taken[i];
    change.usage = usage_.usage_of_new(change.address);
    changes.push_back(change);
  }
  attached_.index().apply(changes);
  attached_.index().commit(last);
}

void IndexMirror::clear(const Clear& clear, const RemovedRows& removed) {
  if (!removed.is_complete) {
    auto left = attached_.writer().count_entries();
    if (left.is_ok() && left.value() == 0) return attached_.index().reset(clear.sequence);
    return attached_.index().discard();
  }
  std::vector<SharedIndex::Change> changes;
  changes.reserve(removed.rows.size());
  for (const RemovedRows::Row& row : removed.rows) {
    changes.push_back({address_of(row.context, row.key), row.sequence});
  }
  attached_.index().apply(changes);
  attached_.index().commit(clear.sequence);
}

}  // namespace modcache::store
