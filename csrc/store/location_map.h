// SPDX-License-Identifier: Apache-2.0
//
// LocationMap: where this process found entries, so that the next find() needs no SQL. All of it
// is forgotten when any process removed or replaced anything. Bounded: it is a copy of what the
// index knows, in every process. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "base/hash.h"
#include "base/mutex.h"
#include "store/index.h"

namespace modcache::store {

class LocationMap {
 public:
  // `removals` is the control page's counter, read before the question is asked. 0: it could not
  // be read, so nothing is known.
  std::optional<Location> find(const Digest128& address, std::uint64_t removals);
  // `removals` was read before the index was asked for the location.
  void add(const Digest128& address, const Location& location, std::uint64_t removals);
  void remove(const Digest128& address);

 private:
  static constexpr std::size_t kMostLocations = 1 << 18;  // some 25 MB

  void forget_outdated(std::uint64_t removals) MODCACHE_REQUIRES(mutex_);

  Mutex mutex_;
  std::uint64_t removals_ MODCACHE_GUARDED_BY(mutex_) = 0;
  std::unordered_map<Digest128, Location, Digest128Hash> locations_ MODCACHE_GUARDED_BY(mutex_);
};

}  // namespace modcache::store
