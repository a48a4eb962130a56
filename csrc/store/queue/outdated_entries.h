// SPDX-License-Identifier: Apache-2.0
//
// OutdatedEntries: what was replaced by values that could not be kept, and could not be removed
// from the directory so far. Until it is, this process does not find it. Thread-safe; while it is
// empty, asking costs one atomic load.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "base/mutex.h"
#include "store/entry/entry_id.h"

namespace modcache::store {

// An entry of this id that is older than `sequence` must not be found again.
struct OutdatedEntry {
  std::shared_ptr<const Context> context;
  std::string key;
  Sequence sequence = 0;
};

class OutdatedEntries {
 public:
  // Beyond `most_entries` their names are not kept: all that is older is outdated then, for good.
  explicit OutdatedEntries(std::size_t most_entries) : most_entries_(most_entries) {}

  void add(std::vector<OutdatedEntry> entries);
  // Does nothing if the entry was added again since, for a later value.
  void remove(const OutdatedEntry& entry);
  // One that is still to be removed.
  std::optional<OutdatedEntry> any() const;

  bool is_empty() const { return is_empty_.load(std::memory_order_acquire); }
  std::size_t size() const;
  bool covers(const Digest128& address, Sequence sequence) const;

 private:
  const std::size_t most_entries_;
  std::atomic<bool> is_empty_{true};
  mutable Mutex mutex_;
  std::unordered_map<Digest128, OutdatedEntry, Digest128Hash> entries_ MODCACHE_GUARDED_BY(mutex_);
  Sequence all_before_ MODCACHE_GUARDED_BY(mutex_) = 0;
};

}  // namespace modcache::store
