// SPDX-License-Identifier: Apache-2.0
#include "store/location_map.h"

namespace modcache::store {

// The counter only grows: a smaller one was read before somebody else read a larger.
void LocationMap::forget_outdated(std::uint64_t removals) {
  if (removals <= removals_) return;
  locations_.clear();
  removals_ = removals;
}

std::optional<Location> LocationMap::find(const Digest128& address, std::uint64_t removals) {
  if (removals == 0) return std::nullopt;
  MutexLock lock(mutex_);
  forget_outdated(removals);
  const auto entry = locations_.find(address);
  if (entry == locations_.end()) return std::nullopt;
  return entry->second;
}

void LocationMap::add(const Digest128& address, const Location& location, std::uint64_t removals) {
  MutexLock lock(mutex_);
  forget_outdated(removals);
  if (removals == 0 || removals != removals_) return;
  if (locations_.size() >= kMostLocations) locations_.clear();
  locations_[address] = location;
}

void LocationMap::remove(const Digest128& address) {
  MutexLock lock(mutex_);
  locations_.erase(address);
}

}  // namespace modcache::store
