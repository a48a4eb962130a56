// SPDX-License-Identifier: Apache-2.0
#include "policy/sightings.h"

#include <optional>

namespace modcache::policy {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr int kBits = 16;
constexpr int kMarks = 64 / kBits;

// Never 0, which marks a free place. The low bits have chosen the bucket.
std::uint64_t mark_of(std::uint64_t hash) {
  const std::uint64_t mark = hash >> (64 - kBits);
  return mark == 0 ? 1 : mark;
}

std::uint64_t low_bits(int count) {
  return count >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
}

// Returns the place of the mark in the bucket, counted from the newest; nothing: it is not there.
std::optional<int> place_of(std::uint64_t marks, std::uint64_t mark) {
  for (int place = 0; place < kMarks; ++place) {
    if ((marks >> (place * kBits) & low_bits(kBits)) == mark) return place;
  }
  return std::nullopt;
}

// Returns the bucket with the mark in front, which is taken out of `place`, or pushes the oldest
// one out.
std::uint64_t with_in_front(std::uint64_t marks, std::uint64_t mark, int place) {
  const std::uint64_t newer = marks & low_bits(place * kBits);
  const std::uint64_t older = marks & ~low_bits((place + 1) * kBits);
  return older | newer << kBits | mark;
}

}  // namespace

bool Sightings::note(std::uint64_t hash) {
  std::atomic<std::uint64_t>& bucket = buckets_[bucket_of(hash)];
  const std::uint64_t mark = mark_of(hash);
  std::uint64_t marks = bucket.load(kRelaxed);
  while (true) {
    const std::optional<int> place = place_of(marks, mark);
    // A key that is asked for by all threads is only read.
    if (place == 0) return true;
    const std::uint64_t next = with_in_front(marks, mark, place.value_or(kMarks - 1));
    if (bucket.compare_exchange_weak(marks, next, kRelaxed)) return place.has_value();
  }
}

bool Sightings::has(std::uint64_t hash) const {
  return place_of(buckets_[bucket_of(hash)].load(kRelaxed), mark_of(hash)).has_value();
}

void Sightings::forget() {
  for (std::size_t i = 0; i < kBuckets; ++i) buckets_[i].store(0, kRelaxed);
}

}  // namespace modcache::policy
