// SPDX-License-Identifier: Apache-2.0
#include "store/queue/outdated_entries.h"

#include <algorithm>
#include <utility>

#include "store/entry/entry_id.h"

namespace modcache::store {

void OutdatedEntries::add(std::vector<OutdatedEntry> entries) {
  if (entries.empty()) return;
  MutexLock lock(mutex_);
  for (OutdatedEntry& entry : entries) {
    const Digest128 address = address_of(entry.context->digest, entry.key);
    const auto known = entries_.find(address);
    if (known != entries_.end()) {
      known->second.sequence = std::max(known->second.sequence, entry.sequence);
    } else if (entries_.size() < most_entries_) {
      entries_.emplace(address, std::move(entry));
    } else {
      all_before_ = std::max(all_before_, entry.sequence);
    }
  }
  is_empty_.store(false, std::memory_order_release);
}

void OutdatedEntries::remove(const OutdatedEntry& entry) {
  MutexLock lock(mutex_);
  const auto known = entries_.find(address_of(entry.context->digest, entry.key));
  if (known == entries_.end() || known->second.sequence > entry.sequence) return;
  entries_.erase(known);
  is_empty_.store(entries_.empty() && all_before_ == 0, std::memory_order_release);
}

std::optional<OutdatedEntry> OutdatedEntries::any() const {
  MutexLock lock(mutex_);
  if (entries_.empty()) return std::nullopt;
  return entries_.begin()->second;
}

std::size_t OutdatedEntries::size() const {
  MutexLock lock(mutex_);
  return entries_.size();
}

bool OutdatedEntries::covers(const Digest128& address, Sequence sequence) const {
  if (is_empty()) return false;
  MutexLock lock(mutex_);
  if (sequence < all_before_) return true;
  const auto known = entries_.find(address);
  return known != entries_.end() && sequence < known->second.sequence;
}

}  // namespace modcache::store
