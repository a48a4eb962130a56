// SPDX-License-Identifier: Apache-2.0
#include "triton_cache/miss_times.h"

#include <algorithm>

#include "base/hash.h"

namespace modcache::triton_cache {

void MissTimes::note_miss(std::string_view key, std::int64_t now_us, bool is_to_be_kept) {
  const std::uint64_t hash = xxh3_64(key.data(), key.size());
  MutexLock lock(mutex_);
  misses_[hash % kPlaces] = {hash, now_us, is_to_be_kept};
}

std::optional<MissTimes::Missed> MissTimes::take(std::string_view key, std::int64_t now_us) {
  const std::uint64_t hash = xxh3_64(key.data(), key.size());
  MutexLock lock(mutex_);
  Miss& miss = misses_[hash % kPlaces];
  if (miss.at_us == 0 || miss.key_hash != hash) return std::nullopt;
  const Missed taken{std::max<std::int64_t>(0, now_us - miss.at_us), miss.is_to_be_kept};
  miss = {};
  return taken;
}

}  // namespace modcache::triton_cache
