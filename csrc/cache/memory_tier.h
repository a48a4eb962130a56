// SPDX-License-Identifier: Apache-2.0
//
// MemoryTier: the entries used last, in this process, within a budget of bytes. Entries beyond
// the budget leave in the order of their last use.
//
// Thread-safe; usable in a forked child, which keeps what its parent had, except values that do not
// outlive a fork (value.h).
#pragma once

#include <cstdint>
#include <functional>
#include <list>
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

  MemoryTier(std::uint64_t budget_bytes, Stats& stats);
  ~MemoryTier();
  MemoryTier(const MemoryTier&) = delete;
  MemoryTier& operator=(const MemoryTier&) = delete;

  // A null entry is a miss.
  Held get(const Digest128& address, const store::EntryId& id);

  // The same for keys of one context, whose addresses these are, under one lock. `held` gets one
  // for each. The key that comes last was used last.
  void get_all(const std::vector<Digest128>& addresses, const store::Context& context,
               const std::vector<std::string_view>& keys, std::vector<Held>& held);

  // Replaces what was held for the key. An entry larger than the whole budget is not taken.
  void put(const Digest128& address, const ContextPtr& context, std::string_view key, Held held);

  struct Put {
    Digest128 address;
    std::string_view key;
    Held held;
  };
  // The same for each in turn, under one lock.
  void put_all(const ContextPtr& context, std::vector<Put> puts);

  // The entry is still current at `removals`: spares the next get() the question.
  void confirm(const Digest128& address, const store::EntryId& id, store::Sequence sequence,
               std::uint64_t removals);

  void erase(const Digest128& address, const store::EntryId& id);

  // Whether the key has an entry here, current or not. Does not count as a use.
  bool holds(const Digest128& address, const store::EntryId& id);

  // For what is brought before it is asked for, by loads with a number above 0. An entry that is
  // there stays. Others make room in the order of their last use, but none that the same load
  // brought: false, and nothing has changed, when only these are left to leave. What is larger
  // than the budget is passed over. For the load kFreeRoomOnly nothing leaves.
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
  };
  using Slots = std::list<Slot>;  // front: used last

  static bool is_of(const Slot& slot, const store::EntryId& id);

  Slots::iterator find(const Digest128& address, const store::EntryId& id)
      MODCACHE_REQUIRES(mutex_);
  void remove(Slots::iterator slot) MODCACHE_REQUIRES(mutex_);
  // Moves the first slot of `fresh` to the front, and what it replaces to `evicted`.
  void insert(Slots& fresh, Slots& evicted) MODCACHE_REQUIRES(mutex_);
  // Moves what exceeds the budget to `evicted`, to be freed when the lock is no longer held.
  void shrink(Slots& evicted) MODCACHE_REQUIRES(mutex_);
  static std::size_t size_bytes_of(const Entry& entry, std::string_view key);
  bool has_room_locked(std::uint64_t size_bytes, std::uint64_t load) MODCACHE_REQUIRES(mutex_);
  // In a forked child: lets go of what only the parent can read.
  void leave_to_parent() MODCACHE_REQUIRES(mutex_);

  Stats& stats_;
  mutable Mutex mutex_;
  Slots slots_ MODCACHE_GUARDED_BY(mutex_);
  std::unordered_map<Digest128, Slots::iterator, Digest128Hash> by_address_
      MODCACHE_GUARDED_BY(mutex_);
  std::uint64_t budget_bytes_ MODCACHE_GUARDED_BY(mutex_);
  std::uint64_t size_bytes_ MODCACHE_GUARDED_BY(mutex_) = 0;
  std::uint64_t fork_generation_ MODCACHE_GUARDED_BY(mutex_) = modcache::fork_generation();
  std::uint64_t fork_ticket_;
};

}  // namespace modcache::cache
