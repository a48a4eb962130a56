// SPDX-License-Identifier: Apache-2.0
#include "store/reclaim/disk_budget.h"

#include <algorithm>

#include "base/clock.h"
#include "fs/change_time.h"

namespace modcache::store {
namespace {

constexpr std::uint64_t kMostSegmentBytes = 256 << 20;
constexpr std::uint64_t kSegmentsPerBudget = 16;
constexpr std::uint64_t kMostReserveBytes = 8 << 20;
constexpr std::uint64_t kReservesPerBudget = 64;
constexpr std::uint64_t kLeastLogBytes = 16 << 10;
constexpr std::uint64_t kMostLogBytes = 4 << 20;
constexpr std::uint64_t kLogsPerBudget = 64;
constexpr std::uint64_t kNotesPerBudget = 16;
// A small directory keeps a few manifests, too, but never more than this part of it.
constexpr std::uint64_t kLeastNotesBytes = 1 << 20;
constexpr std::uint64_t kMostShareOfNotes = 4;
// Room for this many segments is more than reclaiming leaves: somebody cleared.
constexpr std::uint64_t kRoomySegments = 3;

}  // namespace

std::uint64_t DiskBudget::segment_limit(std::uint64_t budget_bytes) {
  return std::min(kMostSegmentBytes, budget_bytes / kSegmentsPerBudget);
}

std::uint64_t DiskBudget::notes_limit(std::uint64_t budget_bytes) {
  return std::min(std::max(budget_bytes / kNotesPerBudget, kLeastNotesBytes),
                  budget_bytes / kMostShareOfNotes);
}

DiskBudget::DiskBudget(const Directory& directory, std::uint64_t budget_bytes)
    : directory_(directory),
      budget_bytes_(budget_bytes),
      segment_bytes_(segment_limit(budget_bytes)) {}

std::uint64_t DiskBudget::most_log_bytes() const {
  return std::clamp(budget_bytes_ / kLogsPerBudget, kLeastLogBytes, kMostLogBytes);
}

std::uint64_t DiskBudget::reserve_bytes() const {
  return std::min(kMostReserveBytes, budget_bytes_ / kReservesPerBudget);
}

std::uint64_t DiskBudget::roomy_bytes() const {
  return (kRoomySegments + 1) * segment_bytes_ + reserve_bytes();
}

// There may be thousands of notes, and they change seldom; each change renames one.
Result<std::uint64_t> DiskBudget::size_of(const std::string& path, KnownFolder& known) {
  auto info = directory_.file_system().info(path);
  if (info.is_not_found()) return std::uint64_t{0};
  if (!info.is_ok()) return info.status();
  if (info.value().changed_ns != known.changed_ns) {
    // Asked before they are counted: a file that comes later is then known by its time.
    const bool is_settled = fs::is_settled(info.value());
    auto size_bytes = directory_.folder_bytes(path);
    if (!size_bytes.is_ok()) return size_bytes;
    known.size_bytes = size_bytes.value();
    known.changed_ns = is_settled ? info.value().changed_ns : 0;
  }
  return known.size_bytes;
}

void DiskBudget::measure() {
  MutexLock lock(mutex_);
  measured_ms_.store(steady_now_ms(), std::memory_order_relaxed);
  auto top = directory_.folder_bytes(directory_.path());
  auto segments = directory_.folder_bytes(directory_.segments_path());
  auto notes = size_of(directory_.notes_path(), notes_);
  auto counters = size_of(directory_.counters_path(), counters_);
  // A size that cannot be measured stays as it was.
  if (!top.is_ok() || !segments.is_ok() || !notes.is_ok() || !counters.is_ok()) return;
  used_bytes_.store(top.value() + segments.value() + notes.value() + counters.value(),
                    std::memory_order_relaxed);
}

std::uint64_t DiskBudget::most_notes_bytes() {
  measure();
  const std::uint64_t free_bytes = budget_bytes_ - std::min(used_bytes(), budget_bytes_);
  MutexLock lock(mutex_);
  return std::min(notes_limit(budget_bytes_), notes_.size_bytes + free_bytes);
}

void DiskBudget::measure_if_older_than(std::int64_t age_ms) {
  if (steady_now_ms() - measured_ms_.load(std::memory_order_relaxed) > age_ms) measure();
}

std::uint64_t DiskBudget::room_bytes(std::uint64_t queued_bytes) const {
  const std::uint64_t taken = used_bytes() + queued_bytes + reserve_bytes();
  return budget_bytes_ - std::min(taken, budget_bytes_);
}

bool DiskBudget::is_full(std::uint64_t wanted_bytes, std::uint64_t queued_bytes,
                         std::uint64_t evictions) {
  const std::uint64_t room = room_bytes(queued_bytes);
  if (room < wanted_bytes) {
    was_full_.store(true, std::memory_order_relaxed);
    return true;
  }
  if (room > kRoomySegments * segment_bytes_) {
    was_full_.store(false, std::memory_order_relaxed);
    evictions_when_roomy_.store(evictions, std::memory_order_relaxed);
    return false;
  }
  return was_full_.load(std::memory_order_relaxed) ||
         evictions != evictions_when_roomy_.load(std::memory_order_relaxed);
}

}  // namespace modcache::store
