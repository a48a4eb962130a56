// SPDX-License-Identifier: Apache-2.0
#include "cache/memory_store.h"

#include <algorithm>
#include <utility>

#include "store/entry/scope_filter.h"

namespace modcache::cache {
namespace {

// List node, hash node and the two string and entry objects of one slot, measured with glibc.
constexpr std::size_t kSlotOverheadBytes = 384;

}  // namespace

MemoryStore::MemoryStore(std::uint64_t budget_bytes, policy::Kind kind, Stats& stats)
    : stats_(stats),
      budget_bytes_(budget_bytes),
      kind_(kind),
      policy_(policy::make_policy(kind)),
      fork_registration_(hold_across_fork(mutex_)) {}

MemoryStore::~MemoryStore() {
  stop_holding_across_fork(fork_registration_);
  MutexLock lock(mutex_);
  leave_to_parent();
}

MemoryStore::Slots::iterator MemoryStore::find(const store::EntryId& id) {
  const auto found = by_address_.find(id.address);
  if (found == by_address_.end()) return slots_.end();
  return is_of(*found->second, id) ? found->second : slots_.end();
}

// Compared in full: an address is a hash, and a stranger may have chosen the key.
bool MemoryStore::is_of(const Slot& slot, const store::EntryId& id) {
  if (slot.key != id.key) return false;
  return slot.context.get() == &id.context || slot.context->digest == id.context.digest;
}

void MemoryStore::use(const Slot& slot) {
  policy::Usage& usage = usages_[slot.place];
  usage = policy_->used(usage, now_);
}

void MemoryStore::get_all(const store::EntryIds& ids, HeldEntry* held, OnMiss on_miss) {
  MutexLock lock(mutex_);
  leave_to_parent();
  for (std::size_t begin = 0; begin < ids.size(); begin += kIdsAtOnce) {
    get_some(ids, begin, std::min(ids.size(), begin + kIdsAtOnce), held, on_miss);
  }
}

// In three rounds, so that the memory that one needs is on its way when it comes. An address's high
// half is its hash to policies; the table of addresses uses the low one.
void MemoryStore::get_some(const store::EntryIds& ids, std::size_t begin, std::size_t end,
                           HeldEntry* held, OnMiss on_miss) {
  Slot* found[kIdsAtOnce];  // what is not found is null
  for (std::size_t i = begin; i < end; ++i) {
    const auto place = by_address_.find(ids.addresses[i]);
    Slot*& slot = found[i - begin];
    slot = place == by_address_.end() ? nullptr : &*place->second;
    if (slot == nullptr) continue;
    __builtin_prefetch(&slot->key);
    __builtin_prefetch(&slot->held);
  }
  for (std::size_t i = begin; i < end; ++i) {
    Slot*& slot = found[i - begin];
    if (slot != nullptr && !is_of(*slot, ids[i])) slot = nullptr;
    if (slot == nullptr) continue;
    __builtin_prefetch(&usages_[slot->place], 1);
    __builtin_prefetch(slot->held.entry.get());
  }
  for (std::size_t i = begin; i < end; ++i) {
    const Slot* const slot = found[i - begin];
    if (slot != nullptr || on_miss == OnMiss::kCount) {
      ++now_;
      policy_->saw(ids.addresses[i].high, slot != nullptr);
    }
    if (slot == nullptr) continue;
    use(*slot);
    held[i] = slot->held;
  }
}

bool MemoryStore::put(const Digest128& address, const ContextPtr& context, std::string_view key,
                      HeldEntry held) {
  std::vector<Put> puts;
  puts.push_back({address, key, std::move(held)});
  return put_all(context, std::move(puts)).front();
}

std::vector<bool> MemoryStore::put_all(const ContextPtr& context, std::vector<Put> puts) {
  Slots fresh;
  for (Put& put : puts) {
    const std::size_t size_bytes = size_bytes_of(*put.held.entry, put.key);
    fresh.push_back(
        Slot{put.address, context, std::string(put.key), std::move(put.held), size_bytes, 0, 0});
  }
  Slots evicted;  // freed, like what is left of `fresh`, when the lock is no longer held
  MutexLock lock(mutex_);
  leave_to_parent();
  std::vector<bool> are_taken;
  are_taken.reserve(puts.size());
  while (!fresh.empty()) are_taken.push_back(insert(fresh, evicted));
  measure();
  return are_taken;
}

std::size_t MemoryStore::size_bytes_of(const Entry& entry, std::string_view key) {
  return entry.value->size_bytes() + entry.signature.size() + key.size() + kSlotOverheadBytes;
}

bool MemoryStore::holds(const store::EntryId& id) {
  MutexLock lock(mutex_);
  return find(id) != slots_.end();
}

bool MemoryStore::has_room_locked(std::uint64_t size_bytes, std::uint64_t load) {
  const std::uint64_t staying_bytes = load == kFreeRoomOnly ? size_bytes_ : bytes_brought_by(load);
  return size_bytes <= budget_bytes_ && staying_bytes <= budget_bytes_ - size_bytes;
}

std::uint64_t MemoryStore::bytes_brought_by(std::uint64_t load) const {
  return load == last_load_ ? last_load_bytes_ : 0;
}

bool MemoryStore::has_room(std::uint64_t value_bytes, std::uint64_t load) {
  MutexLock lock(mutex_);
  const std::uint64_t size_bytes = value_bytes + kSlotOverheadBytes;
  return size_bytes > budget_bytes_ || has_room_locked(size_bytes, load);
}

bool MemoryStore::put_ahead(const Digest128& address, const ContextPtr& context,
                            std::string_view key, HeldEntry held, std::uint64_t load) {
  const std::size_t size_bytes = size_bytes_of(*held.entry, key);
  Slots fresh;
  fresh.push_back(Slot{address, context, std::string(key), std::move(held), size_bytes, load, 0});
  Slots evicted;
  MutexLock lock(mutex_);
  leave_to_parent();
  // Whoever put it knows better: what was read may have been replaced since.
  if (by_address_.count(address) != 0) return true;
  if (size_bytes > budget_bytes_) return budget_bytes_ > 0;
  if (!has_room_locked(size_bytes, load)) return false;
  if (load > last_load_) {
    last_load_ = load;
    last_load_bytes_ = 0;
  }
  const auto slot = fresh.begin();
  slots_.splice(slots_.end(), fresh, slot);
  // Somebody asked for it, if only ahead: it does not leave as what nobody ever used.
  ++now_;
  link(slot, policy_->used(policy_->inserted(address.high, now_), now_));
  shrink(evicted, load);
  measure();
  return true;
}

std::vector<MemoryStore::OfScope> MemoryStore::entries_of(const std::string& scope) {
  std::vector<OfScope> found;
  MutexLock lock(mutex_);
  leave_to_parent();
  for (const Slot& slot : slots_) {
    if (slot.context->scope == scope) found.push_back({slot.address, slot.held.entry});
  }
  return found;
}

void MemoryStore::exchange(const Digest128& address, const EntryPtr& before, EntryPtr after) {
  Slots evicted;
  MutexLock lock(mutex_);
  const auto found = by_address_.find(address);
  if (found == by_address_.end() || found->second->held.entry != before) return;
  const Slots::iterator slot = found->second;
  const policy::Usage usage = usages_[slot->place];
  unlink(*slot);
  slot->size_bytes = size_bytes_of(*after, slot->key);
  slot->held.entry = std::move(after);
  link(slot, usage);
  shrink(evicted);
}

void MemoryStore::leave_to_parent() {
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

void MemoryStore::link(Slots::iterator slot, policy::Usage usage) {
  slot->place = at_.size();
  at_.push_back(slot);
  usages_.push_back(usage);
  by_address_.emplace(slot->address, slot);
  size_bytes_ += slot->size_bytes;
  is_empty_.store(false, std::memory_order_release);
  if (slot->load != 0 && slot->load == last_load_) last_load_bytes_ += slot->size_bytes;
}

void MemoryStore::unlink(Slot& slot) {
  at_[slot.place] = at_.back();
  at_[slot.place]->place = slot.place;
  usages_[slot.place] = usages_.back();
  at_.pop_back();
  usages_.pop_back();
  by_address_.erase(slot.address);
  size_bytes_ -= slot.size_bytes;
  if (slot.load != 0 && slot.load == last_load_) last_load_bytes_ -= slot.size_bytes;
}

bool MemoryStore::insert(Slots& fresh, Slots& evicted) {
  const auto slot = fresh.begin();
  if (const auto old = by_address_.find(slot->address); old != by_address_.end()) {
    return replace(old->second, fresh, evicted);
  }
  if (slot->size_bytes > budget_bytes_ ||
      !make_room(slot->address.high, slot->size_bytes, evicted)) {
    evicted.splice(evicted.end(), fresh, slot);
    return false;
  }
  slots_.splice(slots_.end(), fresh, slot);
  link(slot, policy_->inserted(slot->address.high, ++now_));
  return true;
}

// REQUIRES: `wanted_bytes` is at most the budget.
bool MemoryStore::make_room(std::uint64_t hash, std::uint64_t wanted_bytes, Slots& evicted) {
  shrink_by_expired(evicted, wanted_bytes);
  victims_.clear();
  while (size_bytes_ > budget_bytes_ - wanted_bytes) {
    const auto victim = next_to_leave(kFreeRoomOnly);
    const policy::Usage usage = usages_[victim->place];
    if (!policy_->may_replace(usage, hash, now_)) {
      for (const auto& [slot, slot_usage] : victims_) link(slot, slot_usage);
      return false;
    }
    victims_.emplace_back(victim, usage);
    unlink(*victim);
  }
  for (const auto& [slot, slot_usage] : victims_) {
    policy_->evicted(slot->address.high, slot_usage);
    evicted.splice(evicted.end(), slots_, slot);
    stats_.add(Counter::kEvicted);
  }
  note_whether_empty();
  return true;
}

// The key has another value now, but it is as much in use as the one before.
bool MemoryStore::replace(Slots::iterator old, Slots& fresh, Slots& evicted) {
  const auto slot = fresh.begin();
  const policy::Usage usage = usages_[old->place];
  unlink(*old);
  evicted.splice(evicted.end(), slots_, old);
  if (slot->size_bytes > budget_bytes_) {
    evicted.splice(evicted.end(), fresh, slot);
    note_whether_empty();
    return false;
  }
  slots_.splice(slots_.end(), fresh, slot);
  link(slot, policy_->used(usage, ++now_));
  shrink(evicted);
  return true;
}

void MemoryStore::shrink(Slots& evicted, std::uint64_t load) {
  while (size_bytes_ > budget_bytes_) evict(next_to_leave(load), evicted);
}

void MemoryStore::evict(Slots::iterator slot, Slots& evicted) {
  policy_->evicted(slot->address.high, usages_[slot->place]);
  unlink(*slot);
  evicted.splice(evicted.end(), slots_, slot);
  note_whether_empty();
  stats_.add(Counter::kEvicted);
}

// None is kept beyond its age for long: whatever came before it becomes too old no later than
// `max_age_s_` after it came.
void MemoryStore::shrink_by_expired(Slots& evicted, std::uint64_t wanted_bytes) {
  while (size_bytes_ > budget_bytes_ - wanted_bytes && !slots_.empty() &&
         is_expired(*slots_.front().held.entry, max_age_s_)) {
    evict(slots_.begin(), evicted);
  }
}

// REQUIRES: there is an entry.
MemoryStore::Slots::iterator MemoryStore::next_to_leave(std::uint64_t load) {
  const std::size_t count = at_.size();
  const bool ranks_all = count <= kRankedAll;
  std::size_t next = count;
  std::uint32_t smallest = 0;
  for (std::size_t i = 0; i < (ranks_all ? count : policy::kSampledEntries); ++i) {
    random_ = random_ * 6364136223846793005U + 1442695040888963407U;
    const std::size_t place = ranks_all ? i : (random_ >> 33) % count;
    if (load != kFreeRoomOnly && at_[place]->load == load) continue;
    const std::uint32_t rank = policy_->rank(usages_[place], now_);
    if (next != count && rank >= smallest) continue;
    next = place;
    smallest = rank;
  }
  // Nearly all are of this load: the next one that is not.
  for (std::size_t looked = 0; next == count && looked < count; ++looked) {
    next_place_ = (next_place_ + 1) % count;
    if (at_[next_place_]->load != load) next = next_place_;
  }
  return at_[next == count ? 0 : next];
}

void MemoryStore::measure() {
  const std::uint64_t entries = slots_.size();
  if (entries == 0) return;
  policy_->set_capacity(budget_bytes_ / std::max<std::uint64_t>(size_bytes_ / entries, 1));
}

void MemoryStore::settle_all(const std::vector<Verdict>& verdicts, std::uint64_t removals) {
  MutexLock lock(mutex_);
  leave_to_parent();
  for (const Verdict& verdict : verdicts) {
    const auto slot = find(verdict.id);
    if (slot == slots_.end()) continue;
    const bool is_meant = verdict.only == nullptr || slot->held.entry.get() == verdict.only;
    if (!verdict.is_current) {
      if (is_meant) remove(slot);
    } else if (slot->held.sequence == verdict.sequence) {
      slot->held.removals = removals;
    }
  }
}

void MemoryStore::remove(Slots::iterator slot) {
  unlink(*slot);
  slots_.erase(slot);
  note_whether_empty();
}

// unlink() does not call this, because an entry that is replaced or moved is never missing.
void MemoryStore::note_whether_empty() { is_empty_.store(at_.empty(), std::memory_order_release); }

MemoryStore::Cleared MemoryStore::clear(const store::ClearFilter& filter) {
  MutexLock lock(mutex_);
  leave_to_parent();
  Cleared cleared;
  for (auto slot = slots_.begin(); slot != slots_.end();) {
    const auto next = std::next(slot);
    if (store::covers(filter, *slot->context, slot->key, slot->held.entry->stored_at_us)) {
      ++cleared.entries;
      if (slot->held.sequence == 0) ++cleared.only_here;
      remove(slot);
    }
    slot = next;
  }
  return cleared;
}

void MemoryStore::set_budget(std::uint64_t budget_bytes) {
  Slots evicted;
  MutexLock lock(mutex_);
  leave_to_parent();
  budget_bytes_ = budget_bytes;
  shrink(evicted);
  measure();
}

void MemoryStore::set_max_age(std::int64_t max_age_s) {
  MutexLock lock(mutex_);
  max_age_s_ = max_age_s;
}

void MemoryStore::set_policy(policy::Kind kind) {
  MutexLock lock(mutex_);
  if (kind == kind_) return;
  kind_ = kind;
  policy_ = policy::make_policy(kind);
  measure();
}

std::uint64_t MemoryStore::budget_bytes() const {
  MutexLock lock(mutex_);
  return budget_bytes_;
}

std::int64_t MemoryStore::entries() const {
  MutexLock lock(mutex_);
  return static_cast<std::int64_t>(slots_.size());
}

std::int64_t MemoryStore::size_bytes() const {
  MutexLock lock(mutex_);
  return static_cast<std::int64_t>(size_bytes_);
}

}  // namespace modcache::cache
