// SPDX-License-Identifier: Apache-2.0
//
// FrequencySketch: counts how often keys were seen, up to 15, for keys that have no entry of their
// own to count in. Each key is a tag of 12 bits and a count of 4 bits in a bucket of four. When a
// bucket is full, the key that was seen least often is forgotten, the oldest of equal ones. So with
// too many keys counts are too small, never too large, except that one in about 1,000 keys is taken
// for another one.
//
// The memory is the caller's, and may have any content. Any thread or process may read and write it
// at any time; an update that collides with another one may be lost.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace modcache::policy {

class FrequencySketch {
 public:
  using Bucket = std::atomic<std::uint64_t>;
  static_assert(Bucket::is_always_lock_free);
  static constexpr std::size_t kKeysPerBucket = 4;
  static constexpr std::uint32_t kMaxCount = 15;

  // `buckets` must outlive this object; `count` is a power of two, at most 2^32.
  FrequencySketch(Bucket* buckets, std::size_t count) : buckets_(buckets), mask_(count - 1) {}

  // `hash` is uniformly distributed. 0: the key is unknown.
  std::uint32_t count(std::uint64_t hash) const;
  // Adds `amount` to the count of the key.
  void add(std::uint64_t hash, std::uint32_t amount = 1);
  // Divides all counts by 2^shift. REQUIRES: `shift` is at most 4.
  void age(std::uint32_t shift);

 private:
  Bucket& bucket(std::uint64_t hash) const { return buckets_[hash & mask_]; }

  Bucket* const buckets_;
  const std::size_t mask_;
};

// SeenFilter: whether a key was seen recently. It remembers the last 200,000 keys or so.
// Thread-safe without a lock.
class SeenFilter {
 public:
  SeenFilter() : buckets_(std::make_unique<FrequencySketch::Bucket[]>(kBuckets)) {}

  // Records the key. Returns whether it was seen before.
  bool add(std::uint64_t hash);

 private:
  static constexpr std::size_t kBuckets = 1 << 16;

  const std::unique_ptr<FrequencySketch::Bucket[]> buckets_;
};

}  // namespace modcache::policy
