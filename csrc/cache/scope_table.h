// SPDX-License-Identifier: Apache-2.0
//
// ScopeTable: a few numbers for each scope, found without a lock. Numbers that steer the cost of
// calls, and never what they return: where there are too many scopes, several share theirs (of) or
// have none (own_state).
//
// State is made of atomics, for which all zeros is the beginning. Thread-safe; usable in a forked
// child.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/hash.h"

namespace modcache::cache {

template <typename State>
class ScopeTable {
 public:
  static constexpr std::size_t kSlots = 256;

  State& of(std::string_view scope) {
    State* const own = own_state(scope, /*makes=*/true);
    return own != nullptr ? *own : slots_[hash_of(scope) / 2 % kSlots].state;
  }

  // The state that belongs to this scope. Null: the scope has none, and with `makes` there is no
  // room for it: the slots that it may have are taken.
  State* own_state(std::string_view scope, bool makes) {
    const std::uint64_t hash = hash_of(scope);
    for (std::size_t probe = 0; probe < kProbes; ++probe) {
      Slot& slot = slots_[(hash / 2 + probe) % kSlots];
      std::uint64_t found = slot.hash.load(std::memory_order_relaxed);
      if (found == 0) {
        if (!makes) return nullptr;
        if (slot.hash.compare_exchange_strong(found, hash, std::memory_order_relaxed)) {
          return &slot.state;
        }
      }
      if (found == hash) return &slot.state;
    }
    return nullptr;
  }

  // Frees all slots, after `reset` made their states as at the beginning.
  template <typename Reset>
  void forget(Reset reset) {
    for (Slot& slot : slots_) {
      reset(slot.state);
      slot.hash.store(0, std::memory_order_relaxed);
    }
  }

 private:
  static constexpr std::size_t kProbes = 8;

  static std::uint64_t hash_of(std::string_view scope) {
    return xxh3_64(scope.data(), scope.size()) | 1;  // 0: a free slot
  }

  // On a cache line of its own: threads with different scopes do not meet.
  struct alignas(64) Slot {
    std::atomic<std::uint64_t> hash{0};
    State state;
  };

  std::array<Slot, kSlots> slots_{};
};

}  // namespace modcache::cache
