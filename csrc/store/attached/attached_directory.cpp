// SPDX-License-Identifier: Apache-2.0
#include "store/attached/attached_directory.h"

#include <limits>
#include <string>
#include <utility>

#include "base/clock.h"
#include "store/entry/removals.h"

namespace modcache::store {
namespace {

// How often calls look at the files.
constexpr std::int64_t kAttachedCheckMs = 100;

}  // namespace

AttachedDirectory::AttachedDirectory(const Directory& directory, StoreOptions options,
                                     OpenedDirectory opened)
    : options_(std::move(options)),
      directory_(directory),
      opened_(std::move(opened)),
      index_(directory_, opened_.control.get(), opened_.database, options_.read_via,
             !is_read_only()),
      readers_(directory_, options_.read_via),
      uncounted_removals_(first_removals()) {
  auto given = directory_.file_system().info(options_.directory);
  if (given.is_ok()) given_ = given.value();
}

Status AttachedDirectory::check_writable() const {
  if (is_read_only()) return Status::io_error("'" + directory_.path() + "' can only be read");
  if (!is_attached()) return Status::io_error("'" + directory_.path() + "' was replaced");
  return Status::ok();
}

bool AttachedDirectory::is_known_detached() const {
  if (!is_attached_.load(std::memory_order_relaxed)) return true;
  return opened_.control != nullptr && opened_.control->epoch() != opened_.epoch;
}

bool AttachedDirectory::check_attached() const {
  if (is_known_detached()) return false;
  const std::int64_t now = steady_now_ms();
  if (now - checked_ms_.load(std::memory_order_relaxed) < kAttachedCheckMs) return true;
  checked_ms_.store(now, std::memory_order_relaxed);
  fs::FileSystem& file_system = directory_.file_system();
  const auto is_file = [&](const std::string& path, const fs::FileInfo& expected) {
    auto info = file_system.info(path);
    return info.is_ok() ? info.value().is_same_file(expected) : expected.inode == 0;
  };
  // The path that was given may be a link that leads elsewhere by now.
  bool is_same =
      is_file(options_.directory, given_) && is_file(directory_.database_path(), opened_.database);
  if (opened_.control != nullptr) {
    is_same = is_same && is_file(directory_.control_path(), opened_.control->identity());
  }
  if (opened_.is_snapshot) {
    // The snapshot is out of date as soon as somebody writes, which changes the log's size.
    auto wal = file_system.info(directory_.wal_path());
    const std::uint64_t size_bytes = wal.is_ok() ? wal.value().size_bytes : 0;
    is_same = is_same && size_bytes == opened_.log_size_bytes;
  }
  if (!is_same) is_attached_.store(false, std::memory_order_relaxed);
  return is_same;
}

void AttachedDirectory::forget_retired() {
  if (opened_.control == nullptr) return;
  const std::uint64_t reclaims = opened_.control->reclaims();
  if (seen_reclaims_.load(std::memory_order_relaxed) == reclaims) return;
  if (seen_reclaims_.exchange(reclaims) != reclaims) readers_.forget_retired();
}

// Clears are counted before sequences are, so that a clear in between counts as a later one.
Moment AttachedDirectory::now() const {
  const std::uint64_t source = removals() >> kSourceShift;
  if (opened_.control == nullptr) return {source, 0, 0};
  const std::uint64_t clears = opened_.control->clears();
  return {source, clears, opened_.control->next() - 1};
}

std::int64_t AttachedDirectory::expired_before_us() const {
  if (options_.max_age_us <= 0) return std::numeric_limits<std::int64_t>::min();
  return now_us() - options_.max_age_us;
}

}  // namespace modcache::store
