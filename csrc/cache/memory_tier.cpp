// SPDX-License-Identifier: Apache-2.0
#include "cache/memory_tier.h"

#include <algorithm>
#include <utility>

namespace modcache::cache {
namespace {

// List node, hash node and the two string and entry objects of one slot, measured with glibc.
constexpr std::size_t kSlotOverheadBytes = 320;

bool matches(const store::Context& context, const std::string& key,
             const store::ClearFilter& filter) {
  if (!filter.scope.empty() && context.scope != filter.scope) return false;
  return key.compare(0, filter.key_prefix.size(), filter.key_prefix) == 0;
}

}  // namespace

MemoryTier::MemoryTier(std::uint64_t budget_bytes, Stats& stats)
    : stats_(stats), budget_bytes_(budget_bytes), fork_ticket_(hold_across_fork(mutex_)) {}

MemoryTier::~MemoryTier() {
  stop_holding_across_fork(fork_ticket_);
  MutexLock lock(mutex_);
  leave_to_parent();
}

MemoryTier::Slots::iterator MemoryTier::find(const Digest128& address, const store::EntryId& id) {
  const auto found = by_address_.find(address);
  if (found == by_address_.end()) return slots_.end();
  return is_of(*found->second, id) ? found->second : slots_.end();
}

// Compared in full: an address is a hash, and a stranger may have chosen the key.
bool MemoryTier::is_of(const Slot& slot, const store::EntryId& id) {
  if (slot.key != id.key) return false;
  return slot.context.get() == &id.context || slot.context->digest == id.context.digest;
}

MemoryTier::Held MemoryTier::get(const Digest128& address, const store::EntryId& id) {
  MutexLock lock(mutex_);
  leave_to_parent();
  const auto slot = find(address, id);
  if (slot == slots_.end()) return {};
  slots_.splice(slots_.begin(), slots_, slot);
  return slot->held;
}

void MemoryTier::get_all(const std::vector<Digest128>& addresses, const store::Context& context,
                         const std::vector<std::string_view>& keys, std::vector<Held>& held) {
  held.assign(keys.size(), Held{});
  MutexLock lock(mutex_);
  leave_to_parent();
  if (slots_.empty()) return;
  // In three rounds, so that what one needs is on its way from memory when it comes.
  std::vector<Slots::iterator> found(keys.size(), slots_.end());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto slot = by_address_.find(addresses[i]);
    if (slot == by_address_.end()) continue;
    found[i] = slot->second;
    __builtin_prefetch(&found[i]->key);
    __builtin_prefetch(&found[i]->held);
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (found[i] == slots_.end()) continue;
    if (!is_of(*found[i], {context, keys[i]})) {
      found[i] = slots_.end();
      continue;
    }
    slots_.splice(slots_.begin(), slots_, found[i]);
    __builtin_prefetch(found[i]->held.entry.get());
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (found[i] != slots_.end()) held[i] = found[i]->held;
  }
}

void MemoryTier::put(const Digest128& address, const ContextPtr& context, std::string_view key,
                     Held held) {
  std::vector<Put> puts;
  puts.push_back({address, key, std::move(held)});
  put_all(context, std::move(puts));
}

void MemoryTier::put_all(const ContextPtr& context, std::vector<Put> puts) {
  Slots fresh;
  for (Put& put : puts) {
    const std::size_t size_bytes = size_bytes_of(*put.held.entry, put.key);
    fresh.push_back(
        Slot{put.address, context, std::string(put.key), std::move(put.held), size_bytes, 0});
  }
  Slots evicted;  // freed, like what is left of `fresh`, when the lock is no longer held
  MutexLock lock(mutex_);
  leave_to_parent();
  while (!fresh.empty()) insert(fresh, evicted);
  shrink(evicted);
}

std::size_t MemoryTier::size_bytes_of(const Entry& entry, std::string_view key) {
  return entry.value->size_bytes() + entry.signature.size() + key.size() + kSlotOverheadBytes;
}

bool MemoryTier::holds(const Digest128& address, const store::EntryId& id) {
  MutexLock lock(mutex_);
  return find(address, id) != slots_.end();
}

bool MemoryTier::has_room_locked(std::uint64_t size_bytes, std::uint64_t load) {
  std::uint64_t free_bytes = budget_bytes_ - std::min(budget_bytes_, size_bytes_);
  for (auto last = slots_.rbegin(); free_bytes < size_bytes; ++last) {
    if (last == slots_.rend() || load == kFreeRoomOnly || last->load == load) return false;
    free_bytes += last->size_bytes;
  }
  return true;
}

bool MemoryTier::has_room(std::uint64_t value_bytes, std::uint64_t load) {
  MutexLock lock(mutex_);
  const std::uint64_t size_bytes = value_bytes + kSlotOverheadBytes;
  return size_bytes > budget_bytes_ || has_room_locked(size_bytes, load);
}

bool MemoryTier::put_ahead(const Digest128& address, const ContextPtr& context,
                           std::string_view key, Held held, std::uint64_t load) {
  const std::size_t size_bytes = size_bytes_of(*held.entry, key);
  Slots fresh;
  fresh.push_back(Slot{address, context, std::string(key), std::move(held), size_bytes, load});
  Slots evicted;
  MutexLock lock(mutex_);
  leave_to_parent();
  // Whoever put it knows better: what was read may have been replaced since.
  if (by_address_.count(address) != 0) return true;
  if (size_bytes > budget_bytes_) return budget_bytes_ > 0;
  if (!has_room_locked(size_bytes, load)) return false;
  insert(fresh, evicted);
  shrink(evicted);
  return true;
}

std::vector<MemoryTier::OfScope> MemoryTier::entries_of(const std::string& scope) {
  std::vector<OfScope> found;
  MutexLock lock(mutex_);
  leave_to_parent();
  for (const Slot& slot : slots_) {
    if (slot.context->scope == scope) found.push_back({slot.address, slot.held.entry});
  }
  return found;
}

void MemoryTier::exchange(const Digest128& address, const EntryPtr& before, EntryPtr after) {
  Slots evicted;
  MutexLock lock(mutex_);
  const auto found = by_address_.find(address);
  if (found == by_address_.end() || found->second->held.entry != before) return;
  Slot& slot = *found->second;
  size_bytes_ -= slot.size_bytes;
  slot.size_bytes = size_bytes_of(*after, slot.key);
  size_bytes_ += slot.size_bytes;
  slot.held.entry = std::move(after);
  shrink(evicted);
}

void MemoryTier::leave_to_parent() {
  if (fork_generation_ == modcache::fork_generation()) return;
  fork_generation_ = modcache::fork_generation();
  for (auto slot = slots_.begin(); slot != slots_.end();) {
    const auto next = std::next(slot);
    if (!slot->held.entry->value->outlives_fork()) {
      new EntryPtr(std::move(slot->held.entry));  // NOLINT: leaked, it cannot be freed here either
      remove(slot);
    }
    slot = next;
  }
}

void MemoryTier::insert(Slots& fresh, Slots& evicted) {
  const auto slot = fresh.begin();
  if (const auto old = by_address_.find(slot->address); old != by_address_.end()) {
    size_bytes_ -= old->second->size_bytes;
    evicted.splice(evicted.end(), slots_, old->second);
    by_address_.erase(old);
  }
  if (slot->size_bytes > budget_bytes_) {
    evicted.splice(evicted.end(), fresh, slot);
    return;
  }
  slots_.splice(slots_.begin(), fresh, slot);
  by_address_.emplace(slot->address, slot);
  size_bytes_ += slot->size_bytes;
}

void MemoryTier::shrink(Slots& evicted) {
  while (size_bytes_ > budget_bytes_) {
    const auto last = std::prev(slots_.end());
    size_bytes_ -= last->size_bytes;
    by_address_.erase(last->address);
    evicted.splice(evicted.end(), slots_, last);
    stats_.add(Counter::kEvicted);
  }
}

void MemoryTier::confirm(const Digest128& address, const store::EntryId& id,
                         store::Sequence sequence, std::uint64_t removals) {
  MutexLock lock(mutex_);
  const auto slot = find(address, id);
  if (slot != slots_.end() && slot->held.sequence == sequence) slot->held.removals = removals;
}

void MemoryTier::settle_all(const store::Context& context, const std::vector<Verdict>& verdicts,
                            std::uint64_t removals) {
  MutexLock lock(mutex_);
  leave_to_parent();
  for (const Verdict& verdict : verdicts) {
    const auto slot = find(verdict.address, {context, verdict.key});
    if (slot == slots_.end()) continue;
    if (!verdict.is_current) {
      remove(slot);
    } else if (slot->held.sequence == verdict.sequence) {
      slot->held.removals = removals;
    }
  }
}

void MemoryTier::remove(Slots::iterator slot) {
  size_bytes_ -= slot->size_bytes;
  by_address_.erase(slot->address);
  slots_.erase(slot);
}

void MemoryTier::erase(const Digest128& address, const store::EntryId& id) {
  MutexLock lock(mutex_);
  leave_to_parent();
  const auto slot = find(address, id);
  if (slot != slots_.end()) remove(slot);
}

MemoryTier::Cleared MemoryTier::clear(const store::ClearFilter& filter) {
  MutexLock lock(mutex_);
  leave_to_parent();
  Cleared cleared;
  for (auto slot = slots_.begin(); slot != slots_.end();) {
    const auto next = std::next(slot);
    if (matches(*slot->context, slot->key, filter)) {
      ++cleared.entries;
      if (slot->held.sequence == 0) ++cleared.only_here;
      remove(slot);
    }
    slot = next;
  }
  return cleared;
}

void MemoryTier::set_budget(std::uint64_t budget_bytes) {
  Slots evicted;
  MutexLock lock(mutex_);
  leave_to_parent();
  budget_bytes_ = budget_bytes;
  shrink(evicted);
}

std::int64_t MemoryTier::entries() const {
  MutexLock lock(mutex_);
  return static_cast<std::int64_t>(slots_.size());
}

std::int64_t MemoryTier::size_bytes() const {
  MutexLock lock(mutex_);
  return static_cast<std::int64_t>(size_bytes_);
}

}  // namespace modcache::cache
