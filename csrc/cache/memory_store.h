// SPDX-License-Identifier: Apache-2.0
//
// MemoryStore: entries in this process, within a budget of bytes: what the memory tier keeps its
// entries in. Its policy (policy/policy.h) chooses which entries stay when there are more: of a few
// sampled entries the one with the smallest rank is evicted; of all of them while there are no more
// than kRankedAll.
//
// It knows nothing of the directory that the entries also lie in: it keeps what it is told of that
// beside each entry. Thread-safe; usable in a forked child, which keeps what its parent had, except
// values that do not outlive a fork (value.h).
#pragma once

#include <atomic>
#include <cstdint>
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
#include "cache/tier.h"
#include "policy/policy.h"
#include "store/store.h"

namespace modcache::cache {

class MemoryStore {
 public:
  static constexpr std::size_t kRankedAll = 128;

  MemoryStore(std::uint64_t budget_bytes, policy::Kind kind, Stats& stats);
  ~MemoryStore();
  MemoryStore(const MemoryStore&) = delete;
  MemoryStore& operator=(const MemoryStore&) = delete;

  // The share of the budget that the entry takes.
  static std::size_t size_bytes_of(const Entry& entry, std::string_view key);

  // Fills `held` with one for each id, all under one lock; a null entry is a miss. The id that
  // comes last was used last.
  void get_all(const store::EntryIds& ids, HeldEntry* held, OnMiss on_miss = OnMiss::kCount);
  HeldEntry get(const store::EntryId& id, OnMiss on_miss = OnMiss::kCount) {
    HeldEntry held;
    get_all(store::batch_of(id), &held, on_miss);
    return held;
  }

  // Replaces what was held for the key. An entry larger than the whole budget is not taken. A new
  // one may evict others only as far as the policy lets it replace them; expired ones are evicted
  // first, for any new entry. False: it was not taken.
  bool put(const Digest128& address, const ContextPtr& context, std::string_view key,
           HeldEntry held);

  struct Put {
    Digest128 address;
    std::string_view key;
    HeldEntry held;
  };
  // The same for each in turn, under one lock.
  std::vector<bool> put_all(const ContextPtr& context, std::vector<Put> puts);

  // Whether the key has an entry here, current or not. Does not count as a use.
  bool holds(const store::EntryId& id);

  // For what is brought before it is asked for, by loads with a number above 0, each above those
  // before. An entry that is there stays. Others make room as the policy ranks them, but none that
  // the same load brought: false, and nothing has changed, when only these are left to leave. What
  // is larger than the budget is passed over. For the load kFreeRoomOnly nothing leaves.
  static constexpr std::uint64_t kFreeRoomOnly = 0;
  bool put_ahead(const Digest128& address, const ContextPtr& context, std::string_view key,
                 HeldEntry held, std::uint64_t load);
  // Whether put_ahead() would find room for a value of so many bytes.
  bool has_room(std::uint64_t value_bytes, std::uint64_t load);

  // entries_of() returns the entries of a scope. exchange() puts `after` in the place of `before`;
  // it does nothing if `address` leads to another entry by now.
  struct OfScope {
    Digest128 address;
    EntryPtr entry;
  };
  std::vector<OfScope> entries_of(const std::string& scope);
  void exchange(const Digest128& address, const EntryPtr& before, EntryPtr after);

  // The outcome of comparing an entry with the directory: it is current as of this many removals,
  // or it has to go. settle_all() leaves an entry alone if another took its place meanwhile, unless
  // that one has to go.
  struct Verdict {
    store::EntryId id;
    store::Sequence sequence = 0;
    bool is_current = false;
    const Entry* only = nullptr;  // goes; null: whichever the key has
  };
  void settle_all(const std::vector<Verdict>& verdicts, std::uint64_t removals);

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

  // Costs an atomic load.
  bool is_empty() const { return is_empty_.load(std::memory_order_acquire); }
  std::uint64_t budget_bytes() const;
  std::int64_t entries() const;
  std::int64_t size_bytes() const;

 private:
  struct Slot {
    Digest128 address;
    ContextPtr context;
    std::string key;
    HeldEntry held;
    std::size_t size_bytes = 0;
    std::uint64_t load = 0;  // that brought it ahead; 0: none
    std::size_t place = 0;   // in usages_ and at_
  };
  using Slots = std::list<Slot>;

  // So many ids are looked for at once, which takes no memory of the heap.
  static constexpr std::size_t kIdsAtOnce = 64;

  static bool is_of(const Slot& slot, const store::EntryId& id);

  Slots::iterator find(const store::EntryId& id) MODCACHE_REQUIRES(mutex_);
  void get_some(const store::EntryIds& ids, std::size_t begin, std::size_t end, HeldEntry* held,
                OnMiss on_miss) MODCACHE_REQUIRES(mutex_);
  void remove(Slots::iterator slot) MODCACHE_REQUIRES(mutex_);
  // Moves the first slot of `fresh` to the others; what leaves for it, or else itself, to
  // `evicted`, to be freed when the lock is no longer held. False: it was itself.
  bool insert(Slots& fresh, Slots& evicted) MODCACHE_REQUIRES(mutex_);
  bool replace(Slots::iterator old, Slots& fresh, Slots& evicted) MODCACHE_REQUIRES(mutex_);
  // Evicts others until there is room for this much, if the policy lets the new entry replace each
  // of them. False: it does not, nothing but expired entries was evicted, and the new entry is not
  // to be stored.
  bool make_room(std::uint64_t hash, std::uint64_t wanted_bytes, Slots& evicted)
      MODCACHE_REQUIRES(mutex_);
  // Moves what exceeds the budget to `evicted`; entries of this load only when no others are left.
  void shrink(Slots& evicted, std::uint64_t load = kFreeRoomOnly) MODCACHE_REQUIRES(mutex_);
  void evict(Slots::iterator slot, Slots& evicted) MODCACHE_REQUIRES(mutex_);
  // Makes room with what came first, as long as that is too old.
  void shrink_by_expired(Slots& evicted, std::uint64_t wanted_bytes) MODCACHE_REQUIRES(mutex_);
  Slots::iterator next_to_leave(std::uint64_t load) MODCACHE_REQUIRES(mutex_);
  // The slot out of all tables; it stays in its list.
  void unlink(Slot& slot) MODCACHE_REQUIRES(mutex_);
  void link(Slots::iterator slot, policy::Usage usage) MODCACHE_REQUIRES(mutex_);
  void note_whether_empty() MODCACHE_REQUIRES(mutex_);
  void use(const Slot& slot) MODCACHE_REQUIRES(mutex_);
  void measure() MODCACHE_REQUIRES(mutex_);
  std::uint64_t bytes_brought_by(std::uint64_t load) const MODCACHE_REQUIRES(mutex_);
  bool has_room_locked(std::uint64_t size_bytes, std::uint64_t load) MODCACHE_REQUIRES(mutex_);
  // In a forked child: lets go of what only the parent can read.
  void leave_to_parent() MODCACHE_REQUIRES(mutex_);

  Stats& stats_;
  mutable Mutex mutex_;
  std::atomic<bool> is_empty_{true};
  Slots slots_ MODCACHE_GUARDED_BY(mutex_);  // in the order in which they came
  std::unordered_map<Digest128, Slots::iterator, Digest128Hash> by_address_
      MODCACHE_GUARDED_BY(mutex_);
  std::uint64_t budget_bytes_ MODCACHE_GUARDED_BY(mutex_);
  std::uint64_t size_bytes_ MODCACHE_GUARDED_BY(mutex_) = 0;
  // make_room() fills it; a member, so that it keeps its memory.
  std::vector<std::pair<Slots::iterator, policy::Usage>> victims_ MODCACHE_GUARDED_BY(mutex_);
  std::int64_t max_age_s_ MODCACHE_GUARDED_BY(mutex_) = 0;
  policy::Kind kind_ MODCACHE_GUARDED_BY(mutex_);
  std::unique_ptr<policy::Policy> policy_ MODCACHE_GUARDED_BY(mutex_);
  // The usage of each slot, by its place. Ranking reads many of them, so they lie side by side.
  std::vector<policy::Usage> usages_ MODCACHE_GUARDED_BY(mutex_);
  std::vector<Slots::iterator> at_ MODCACHE_GUARDED_BY(mutex_);
  policy::Tick now_ MODCACHE_GUARDED_BY(mutex_) = 0;
  std::uint64_t random_ MODCACHE_GUARDED_BY(mutex_) = 1;
  std::size_t next_place_ MODCACHE_GUARDED_BY(mutex_) = 0;
  // The last load that brought something, and how much of it is still here.
  std::uint64_t last_load_ MODCACHE_GUARDED_BY(mutex_) = 0;
  std::uint64_t last_load_bytes_ MODCACHE_GUARDED_BY(mutex_) = 0;
  std::uint64_t fork_generation_ MODCACHE_GUARDED_BY(mutex_) = modcache::fork_generation();
  std::uint64_t fork_registration_;
};

}  // namespace modcache::cache
