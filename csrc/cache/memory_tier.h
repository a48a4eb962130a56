// SPDX-License-Identifier: Apache-2.0
//
// MemoryTier: entries in this process, within a budget of bytes. Which of them stay when there are
// more is its policy's choice (policy/policy.h): of a few entries taken at random the one with the
// smallest rank leaves; of all of them while there are no more than kRankedAll.
//
// Thread-safe; usable in a forked child, which keeps what its parent had, except values that do not
// outlive a fork (value.h).
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/fork.h"
#include "base/hash.h"
#include "base/mutex.h"
#include "cache/context.h"
#include "cache/stats.h"
#include "cache/value.h"
#include "policy/policy.h"
#include "store/store.h"

namespace modcache::cache {

class MemoryTier {
 public:
  // What get() gives: the entry, its place in the directory (0: it is not there), and the
  // directory's count of removals up to which it is known to be current.
  struct Held {
    EntryPtr entry;
    store::Sequence sequence = 0;
    std::uint64_t removals = 0;
  };

  static constexpr std::size_t kRankedAll = 128;

  MemoryTier(std::uint64_t budget_bytes, policy::Kind kind, Stats& stats);
  ~MemoryTier();
  MemoryTier(const MemoryTier&) = delete;
  MemoryTier& operator=(const MemoryTier&) = delete;

  // Whether a miss is a lookup to the policy. Not where the same key is asked for again at once, or
  // where nobody will store it.
  enum class OnMiss { kCount, kIgnore };

  // What the entry takes of the budget.
  static std::size_t size_bytes_of(const Entry& entry, std::string_view key);

  // A null entry is a miss.
  Held get(const Digest128& address, const store::EntryId& id, OnMiss on_miss = OnMiss::kCount);

  // The same for keys of one context, whose addresses these are, under one lock. `held` gets one
  // for each. The key that comes last was used last.
  void get_all(const std::vector<Digest128>& addresses, const store::Context& context,
               const std::vector<std::string_view>& keys, std::vector<Held>& held,
               OnMiss on_miss = OnMiss::kCount);

  // Replaces what was held for the key. An entry larger than the whole budget is not taken, and a
  // new one for which others would have to leave only if the policy admits it; those that are too
  // old leave first, whoever comes. False: it was not taken.
  bool put(const Digest128& address, const ContextPtr& context, std::string_view key, Held held);

  struct Put {
    Digest128 address;
    std::string_view key;
    Held held;
  };
  // The same for each in turn, under one lock.
  std::vector<bool> put_all(const ContextPtr& context, std::vector<Put> puts);

  // The entry is still current at `removals`: spares the next get() the question.
  void confirm(const Digest128& address, const store::EntryId& id, store::Sequence sequence,
               std::uint64_t removals);

  void erase(const Digest128& address, const store::EntryId& id);

  // Whether the key has an entry here, current or not. Does not count as a use.
  bool holds(const Digest128& address, const store::EntryId& id);

  // For what is brought before it is asked for, by loads with a number above 0, each above those
  // before. An entry that is there stays. Others make room as the policy ranks them, but none that
  // the same load brought: false, and nothing has changed, when only these are left to leave. What
  // is larger than the budget is passed over. For the load kFreeRoomOnly nothing leaves.
  static constexpr std::uint64_t kFreeRoomOnly = 0;
  bool put_ahead(const Digest128& address, const ContextPtr& context, std::string_view key,
                 Held held, std::uint64_t load);
  // Whether put_ahead() would find room for a value of so many bytes.
  bool has_room(std::uint64_t value_bytes, std::uint64_t load);

  // What is held of a scope, and another value in an entry's stead: nothing happens where
  // `address` leads to another entry by now.
  struct OfScope {
    Digest128 address;
    EntryPtr entry;
  };
  std::vector<OfScope> entries_of(const std::string& scope);
  void exchange(const Digest128& address, const EntryPtr& before, EntryPtr after);

  // What the directory answered for several entries of one context: those that are current are
  // confirmed, the others erased, under one lock.
  struct Verdict {
    Digest128 address;
    std::string_view key;
    store::Sequence sequence = 0;
    bool is_current = false;
  };
  void settle_all(const store::Context& context, const std::vector<Verdict>& verdicts,
                  std::uint64_t removals);

  struct Cleared {
    std::int64_t entries = 0;
    std::int64_t only_here = 0;  // of these, the ones that no directory holds (sequence 0)
  };
  Cleared clear(const store::ClearFilter& filter);

  void set_budget(std::uint64_t budget_bytes);
  // Entries that were stored longer ago are those that are too old; 0: none is.
  void set_max_age(std::int64_t max_age_s);
  // Another policy knows the entries by what the one before it wrote down of their use.
  void set_policy(policy::Kind kind);

  std::int64_t entries() const;
  std::int64_t size_bytes() const;

 private:
  struct Slot {
    Digest128 address;
    ContextPtr context;
    std::string key;
    Held held;
    std::size_t size_bytes = 0;
    std::uint64_t load = 0;  // that brought it ahead; 0: none
    std::size_t place = 0;   // in usages_ and at_
  };
  using Slots = std::list<Slot>;

  static bool is_of(const Slot& slot, const store::EntryId& id);

  Slots::iterator find(const Digest128& address, const store::EntryId& id)
      MODCACHE_REQUIRES(mutex_);
  void remove(Slots::iterator slot) MODCACHE_REQUIRES(mutex_);
  // Moves the first slot of `fresh` to the others; what leaves for it, or else itself, to
  // `evicted`, to be freed when the lock is no longer held. False: it was itself.
  bool insert(Slots& fresh, Slots& evicted) MODCACHE_REQUIRES(mutex_);
  bool replace(Slots::iterator old, Slots& fresh, Slots& evicted) MODCACHE_REQUIRES(mutex_);
  // Moves what exceeds the budget to `evicted`; entries of this load only when no others are left.
  void shrink(Slots& evicted, std::uint64_t load = kFreeRoomOnly) MODCACHE_REQUIRES(mutex_);
  void evict(Slots::iterator slot, Slots& evicted) MODCACHE_REQUIRES(mutex_);
  // Makes room with what came first, as long as that is too old.
  void shrink_by_expired(Slots& evicted, std::uint64_t wanted_bytes) MODCACHE_REQUIRES(mutex_);
  Slots::iterator next_to_leave(std::uint64_t load) MODCACHE_REQUIRES(mutex_);
  // The slot out of all tables; it stays in its list.
  void unlink(Slot& slot) MODCACHE_REQUIRES(mutex_);
  void link(Slots::iterator slot, policy::Usage usage) MODCACHE_REQUIRES(mutex_);
  void use(const Slot& slot) MODCACHE_REQUIRES(mutex_);
  void measure() MODCACHE_REQUIRES(mutex_);
  std::uint64_t bytes_brought_by(std::uint64_t load) const MODCACHE_REQUIRES(mutex_);
  bool has_room_locked(std::uint64_t size_bytes, std::uint64_t load) MODCACHE_REQUIRES(mutex_);
  // In a forked child: lets go of what only the parent can read.
  void leave_to_parent() MODCACHE_REQUIRES(mutex_);

  Stats& stats_;
  mutable Mutex mutex_;
  Slots slots_ MODCACHE_GUARDED_BY(mutex_);  // in the order in which they came
  std::unordered_map<Digest128, Slots::iterator, Digest128Hash> by_address_
      MODCACHE_GUARDED_BY(mutex_);
  std::uint64_t budget_bytes_ MODCACHE_GUARDED_BY(mutex_);
  std::uint64_t size_bytes_ MODCACHE_GUARDED_BY(mutex_) = 0;
  std::int64_t max_age_s_ MODCACHE_GUARDED_BY(mutex_) = 0;
  policy::Kind kind_ MODCACHE_GUARDED_BY(mutex_);
  std::unique_ptr<policy::Policy> policy_ MODCACHE_GUARDED_BY(mutex_);
  // Of each slot at its place, side by side: what ranking reads of many entries.
  std::vector<policy::Usage> usages_ MODCACHE_GUARDED_BY(mutex_);
  std::vector<Slots::iterator> at_ MODCACHE_GUARDED_BY(mutex_);
  policy::Tick now_ MODCACHE_GUARDED_BY(mutex_) = 0;
  std::uint64_t random_ MODCACHE_GUARDED_BY(mutex_) = 1;
  std::size_t next_place_ MODCACHE_GUARDED_BY(mutex_) = 0;
  // The last load that brought something, and how much of it is still here.
  std::uint64_t last_load_ MODCACHE_GUARDED_BY(mutex_) = 0;
  std::uint64_t last_load_bytes_ MODCACHE_GUARDED_BY(mutex_) = 0;
  std::uint64_t fork_generation_ MODCACHE_GUARDED_BY(mutex_) = modcache::fork_generation();
  std::uint64_t fork_ticket_;
};

}  // namespace modcache::cache
