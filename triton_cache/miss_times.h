// SPDX-License-Identifier: Apache-2.0
//
// MissTimes: when a key missed, and whether its response is to be kept, until that comes. Triton
// does not tell how long a model ran, so the time between the two stands for it; waiting for the
// model's turn is in it.
//
// Remembers a bounded number of keys: of two that fall on one place the later one stays.
// Thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/mutex.h"

namespace modcache::triton_cache {

class MissTimes {
 public:
  static constexpr std::size_t kPlaces = 4096;

  struct Missed {
    std::int64_t ago_us = 0;
    bool is_to_be_kept = false;
  };

  void note_miss(std::string_view key, std::int64_t now_us, bool is_to_be_kept);
  // Nothing where the miss is not known. Forgets the key.
  std::optional<Missed> take(std::string_view key, std::int64_t now_us);

 private:
  struct Miss {
    std::uint64_t key_hash = 0;
    std::int64_t at_us = 0;  // 0: none
    bool is_to_be_kept = false;
  };

  Mutex mutex_;
  std::array<Miss, kPlaces> misses_ MODCACHE_GUARDED_BY(mutex_){};
};

}  // namespace modcache::triton_cache
