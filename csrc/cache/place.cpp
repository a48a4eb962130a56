// SPDX-License-Identifier: Apache-2.0
#include "cache/place.h"

#include <utility>

#include "base/fork.h"

namespace modcache::cache {

Places::Places() : fork_registration_(hold_across_fork(mutex_)) {}

Places::~Places() { stop_holding_across_fork(fork_registration_); }

void Places::set(const std::string& scope, Place place) {
  MutexLock lock(mutex_);
  if (place.is_host()) {
    by_scope_.erase(scope);
  } else {
    by_scope_.insert_or_assign(scope, std::move(place));
  }
  has_any_.store(!by_scope_.empty(), std::memory_order_release);
}

Place Places::of(const std::string& scope) {
  if (!has_any_.load(std::memory_order_acquire)) return {};
  MutexLock lock(mutex_);
  const auto found = by_scope_.find(scope);
  return found == by_scope_.end() ? Place{} : found->second;
}

}  // namespace modcache::cache
