// SPDX-License-Identifier: Apache-2.0
//
// Ghosts: the hashes of entries that left a tier of late without ever having been used there. It
// remembers about twice as many as the tier has room for, up to the table's size; collisions decide
// which ones are forgotten. Any thread or process may write at any time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace modcache::policy {

using GhostSlot = std::atomic<std::uint32_t>;

class Ghosts {
 public:
  // `slots` outlive this; `count` is a power of two.
  Ghosts(GhostSlot* slots, std::size_t count) : slots_(slots), count_(count) {}

  void add(std::uint64_t hash, std::uint64_t room_entries) {
    slot_of(hash, room_entries).store(mark_of(hash), std::memory_order_relaxed);
  }

  // Removes the hash, and returns whether it was there.
  bool take(std::uint64_t hash, std::uint64_t room_entries) {
    GhostSlot& slot = slot_of(hash, room_entries);
    if (slot.load(std::memory_order_relaxed) != mark_of(hash)) return false;
    slot.store(0, std::memory_order_relaxed);
    return true;
  }

 private:
  static std::uint32_t mark_of(std::uint64_t hash) {
    return static_cast<std::uint32_t>(hash >> 24) | 1;
  }
  GhostSlot& slot_of(std::uint64_t hash, std::uint64_t room_entries) {
    std::size_t used = count_;
    while (used > 64 && used / 2 >= 2 * room_entries) used /= 2;
    return slots_[hash & (used - 1)];
  }

  GhostSlot* const slots_;
  const std::size_t count_;
};

}  // namespace modcache::policy
