// SPDX-License-Identifier: Apache-2.0
//
// Generations: a number for each scope that a clear of it changes, so that a result whose run began
// before the clear is not stored after it. Scopes may share a number: then a clear of one also
// keeps results of the other from being stored. Lock-free; usable in a forked child.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/hash.h"

namespace modcache::cache {

class Generations {
 public:
  std::uint64_t of(std::string_view scope) const {
    return all_.load(std::memory_order_acquire) + slot(scope).load(std::memory_order_acquire);
  }
  // An empty scope stands for all of them.
  void renew(std::string_view scope) {
    (scope.empty() ? all_ : slot(scope)).fetch_add(1, std::memory_order_acq_rel);
  }

 private:
  using Counter = std::atomic<std::uint64_t>;
  static constexpr std::size_t kSlots = 256;

  const Counter& slot(std::string_view scope) const {
    return slots_[xxh3_64(scope.data(), scope.size()) % kSlots];
  }
  Counter& slot(std::string_view scope) {
    return slots_[xxh3_64(scope.data(), scope.size()) % kSlots];
  }

  Counter all_{0};
  std::array<Counter, kSlots> slots_{};
};

}  // namespace modcache::cache
