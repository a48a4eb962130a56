// SPDX-License-Identifier: Apache-2.0
#include "cache/conflict_watch.h"

#include "base/clock.h"
#include "base/fork.h"
#include "base/log.h"

namespace modcache::cache {

ConflictWatch::ConflictWatch() : fork_ticket_(hold_across_fork(mutex_)) {}

ConflictWatch::~ConflictWatch() { stop_holding_across_fork(fork_ticket_); }

// Of more scopes than there is room for, all are learned anew.
ConflictWatch::Scope& ConflictWatch::scope_locked(const std::string& scope) {
  if (scopes_.size() >= kMostScopes && scopes_.count(scope) == 0) scopes_.clear();
  return scopes_[scope];
}

void ConflictWatch::note_conflict(const std::string& scope, std::int64_t stored_at_us) {
  bool has_just_stopped = false;
  {
    MutexLock lock(mutex_);
    has_conflicts_.store(true, std::memory_order_relaxed);
    Scope& known = scope_locked(scope);
    ++known.compared;
    if (known.first_conflict_us == 0) {
      known.first_conflict_us = now_us();
    } else if (stored_at_us >= known.first_conflict_us) {
      ++known.repeated;
    }
    has_just_stopped = judge(known);
  }
  if (has_just_stopped) report_stop(scope);
}

void ConflictWatch::note_agreements(const std::string& scope, std::int64_t keys) {
  if (keys == 0 || !has_conflicts_.load(std::memory_order_relaxed)) return;
  MutexLock lock(mutex_);
  const auto known = scopes_.find(scope);
  if (known == scopes_.end() || known->second.first_conflict_us == 0) return;
  known->second.compared += keys;
  (void)judge(known->second);  // agreements stop nothing
}

bool ConflictWatch::judge(Scope& scope) {
  const bool stops =
      !scope.has_stopped && scope.repeated >= kMostRepeated && scope.repeated * 4 >= scope.compared;
  if (stops) {
    scope.has_stopped = true;
    has_stopped_.store(true, std::memory_order_relaxed);
  }
  if (scope.compared > kWindow) {
    scope.compared /= 2;
    scope.repeated /= 2;
  }
  return stops;
}

// Not under the lock: the log may call Python.
void ConflictWatch::report_stop(const std::string& scope) {
  log_once(LogLevel::kWarning, "conflicts-stop:" + scope,
           "the keys of scope '" + scope.substr(0, 200) +
               "' keep coming with other inputs than their entries were computed from: this "
               "process stores nothing more for it, until modcache.clear() or a new setting of "
               "'match'. Hits that match are still used");
}

bool ConflictWatch::has_stopped_storing(const std::string& scope) {
  if (!has_stopped_.load(std::memory_order_relaxed)) return false;
  MutexLock lock(mutex_);
  const auto known = scopes_.find(scope);
  return known != scopes_.end() && known->second.has_stopped;
}

bool ConflictWatch::looks_at_costly(const std::string& scope, double share) {
  if (share >= 1) return true;
  MutexLock lock(mutex_);
  if (scope_locked(scope).costly_calls++ < kFirstCostlyCalls) return true;
  random_ = random_ * 6364136223846793005U + 1442695040888963407U;
  return static_cast<double>(random_ >> 11) < share * static_cast<double>(std::uint64_t{1} << 53);
}

void ConflictWatch::forget() {
  MutexLock lock(mutex_);
  scopes_.clear();
  has_conflicts_.store(false, std::memory_order_relaxed);
  has_stopped_.store(false, std::memory_order_relaxed);
}

}  // namespace modcache::cache
