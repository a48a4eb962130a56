// SPDX-License-Identifier: Apache-2.0
//
// Sightings: which keys were asked for before, of late. It keeps 16 bits of each of the last
// 262,144 different keys or so, in half a megabyte, whatever else they are.
//
// A key is looked for among the four of its bucket, and the one that was noted longest ago makes
// room for a new one. So a key is remembered with 98 % while 65,536 other ones come, with 86 %
// while 131,072 do; and one in 16,384 of the keys that were never asked for passes for one that
// was. A count-min sketch of the size that aged as fast would take one in forty for known ones:
// too many to tell traffic that never repeats, and how often a key came is more than is asked here.
//
// Thread-safe without a lock: of threads that note one new key together exactly one is the first.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace modcache::policy {

class Sightings {
 public:
  static constexpr std::size_t kBuckets = 1 << 16;

  Sightings() : buckets_(std::make_unique<std::atomic<std::uint64_t>[]>(kBuckets)) {}

  // Notes that the key was asked for. Returns whether it was known already. `hash` is uniformly
  // distributed.
  bool note(std::uint64_t hash);
  // Returns the same and notes nothing.
  bool has(std::uint64_t hash) const;
  void forget();

 private:
  static std::size_t bucket_of(std::uint64_t hash) { return hash % kBuckets; }

  const std::unique_ptr<std::atomic<std::uint64_t>[]> buckets_;
};

}  // namespace modcache::policy
