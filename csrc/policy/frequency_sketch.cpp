// SPDX-License-Identifier: Apache-2.0
#include "policy/frequency_sketch.h"

#include <algorithm>
#include <array>

namespace modcache::policy {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// The keys of a bucket, the oldest first; each is a tag in the upper 12 bits and a count.
using Keys = std::array<std::uint16_t, FrequencySketch::kKeysPerBucket>;

std::uint16_t tag_of(std::uint64_t hash) { return static_cast<std::uint16_t>(hash >> 52 << 4); }

std::uint32_t count_of(std::uint16_t key) { return key & FrequencySketch::kMaxCount; }

Keys unpacked(std::uint64_t bits) {
  Keys keys;
  for (std::uint16_t& key : keys) {
    key = static_cast<std::uint16_t>(bits);
    bits >>= 16;
  }
  return keys;
}

std::uint64_t packed(const Keys& keys) {
  std::uint64_t bits = 0;
  for (std::size_t i = keys.size(); i-- > 0;) bits = bits << 16 | keys[i];
  return bits;
}

bool has_tag(std::uint16_t key, std::uint16_t tag) {
  return (key & ~FrequencySketch::kMaxCount) == tag && count_of(key) != 0;
}

}  // namespace

std::uint32_t FrequencySketch::count(std::uint64_t hash) const {
  for (const std::uint16_t key : unpacked(bucket(hash).load(kRelaxed))) {
    if (has_tag(key, tag_of(hash))) return count_of(key);
  }
  return 0;
}

void FrequencySketch::add(std::uint64_t hash, std::uint32_t amount) {
  const std::uint16_t tag = tag_of(hash);
  Keys keys = unpacked(bucket(hash).load(kRelaxed));
  auto key =
      std::find_if(keys.begin(), keys.end(), [&](auto known) { return has_tag(known, tag); });
  if (key == keys.end()) {
    key = std::min_element(keys.begin(), keys.end(), [](std::uint16_t one, std::uint16_t other) {
      return count_of(one) < count_of(other);
    });
    key = std::move(key + 1, keys.end(), key);
    *key = tag;
  }
  const std::uint32_t count = std::min(count_of(*key) + amount, kMaxCount);
  *key = static_cast<std::uint16_t>(tag | count);
  bucket(hash).store(packed(keys), kRelaxed);
}

void FrequencySketch::age(std::uint32_t shift) {
  for (std::size_t i = 0; i <= mask_; ++i) {
    const std::uint64_t bits = buckets_[i].load(kRelaxed);
    if (bits == 0) continue;  // its page may never have been touched
    Keys keys = unpacked(bits);
    for (std::uint16_t& key : keys) {
      const std::uint32_t count = count_of(key) >> shift;
      key = count == 0 ? std::uint16_t{0} : static_cast<std::uint16_t>((key & ~kMaxCount) | count);
    }
    buckets_[i].store(packed(keys), kRelaxed);
  }
}

bool SeenFilter::add(std::uint64_t hash) {
  FrequencySketch sketch(buckets_.get(), kBuckets);
  const bool was_seen = sketch.count(hash) != 0;
  // All counts are equal, so that a new key replaces the oldest of its bucket.
  if (!was_seen) sketch.add(hash, FrequencySketch::kMaxCount);
  return was_seen;
}

}  // namespace modcache::policy
