// SPDX-License-Identifier: Apache-2.0
//
// DiskBudget: what a directory takes, of what it may take. One budget for the directory, however
// many processes write there: each counts all files before it appends. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/mutex.h"
#include "base/result.h"
#include "store/directory/directory.h"

namespace modcache::store {

class DiskBudget {
 public:
  // A segment takes at most this much, and a write at most half of that: so a directory is never
  // larger than its budget by more than a segment for each process that writes.
  static std::uint64_t segment_limit(std::uint64_t budget_bytes);
  // The share of the budget that all notes may take, which leaves most of it to entries.
  static std::uint64_t notes_limit(std::uint64_t budget_bytes);
  // A row of the index, and what a key adds to it.
  static constexpr std::uint64_t kRowBytes = 128;

  DiskBudget(const Directory& directory, std::uint64_t budget_bytes);

  std::uint64_t budget_bytes() const { return budget_bytes_; }
  std::uint64_t segment_bytes() const { return segment_bytes_; }
  // With so much free a directory is not full any more (is_full()).
  std::uint64_t roomy_bytes() const;
  // How long the log of the database may become before it is emptied.
  std::uint64_t most_log_bytes() const;

  // Looks at all files.
  void measure();
  void measure_if_older_than(std::int64_t age_ms);
  // The size of the directory as it was last measured.
  std::uint64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }
  // The room for new entries beside the `queued_bytes` of others that wait. It is a little less
  // than is free, because index and log grow with them.
  std::uint64_t room_bytes(std::uint64_t queued_bytes) const;
  bool fits(std::uint64_t size_bytes) const { return used_bytes() + size_bytes <= budget_bytes_; }
  // The room that all notes may take now, since entries do not leave for them. Looks at all files.
  std::uint64_t most_notes_bytes();

  // Whether entries have to be admitted: the directory was full, and what was freed since is what
  // was evicted for others. `evictions` is the control page's.
  bool is_full(std::uint64_t wanted_bytes, std::uint64_t queued_bytes, std::uint64_t evictions);

 private:
  std::uint64_t reserve_bytes() const;
  // The size of the files in a folder, as of its last change.
  struct KnownFolder {
    std::int64_t changed_ns = 0;
    std::uint64_t size_bytes = 0;
  };
  Result<std::uint64_t> size_of(const std::string& path, KnownFolder& known)
      MODCACHE_REQUIRES(mutex_);

  const Directory& directory_;
  const std::uint64_t budget_bytes_;
  const std::uint64_t segment_bytes_;
  std::atomic<std::uint64_t> used_bytes_{0};
  std::atomic<std::int64_t> measured_ms_{0};
  std::atomic<bool> was_full_{false};
  std::atomic<std::uint64_t> evictions_when_roomy_{0};
  Mutex mutex_;
  KnownFolder notes_ MODCACHE_GUARDED_BY(mutex_);
  KnownFolder counters_ MODCACHE_GUARDED_BY(mutex_);
};

}  // namespace modcache::store
