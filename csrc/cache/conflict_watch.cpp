// SPDX-License-Identifier: Apache-2.0
#include "cache/conflict_watch.h"

#include "base/clock.h"
#include "base/fork.h"
#include "base/log.h"

namespace modcache::cache {

ConflictWatch::ConflictWatch() : fork_registration_(hold_across_fork(mutex_)) {}

ConflictWatch::~ConflictWatch() { stop_holding_across_fork(fork_registration_); }

// When there is no room for another scope, all scopes are forgotten and learned anew.
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

// Called without the lock, because the log may call Python.
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

bool ConflictWatch::looks_at_costly(const std::string& scope) {
  MutexLock lock(mutex_);
  if (scope_locked(scope).costly_calls++ < kFirstCostlyCalls) return true;
  random_ = random_ * 6364136223846793005U + 1442695040888963407U;
  return (random_ >> 32) % kOneOfCostlyCalls == 0;
}

void ConflictWatch::forget() {
  MutexLock lock(mutex_);
  scopes_.clear();
  has_conflicts_.store(false, std::memory_order_relaxed);
  has_stopped_.store(false, std::memory_order_relaxed);
}

void warn_of_conflict(std::string_view key, const std::string& scope, std::string_view given,
                      std::string_view stored) {
  const std::string named = "key '" + std::string(key.substr(0, 200)) + "' ";
  if (stored == given) {
    log_once(LogLevel::kWarning, "key-conflict-values:" + scope,
             named +
                 "was stored for another input of the same shape: the entry is not used, and the "
                 "module is run. One key must always mean the same input. Likely causes: two data "
                 "sets under the same keys, such as a training and a validation set that both use "
                 "their index (give each a prefix or a scope of its own), or inputs that were "
                 "augmented before the cached module (augment after it, or put the variant into "
                 "the key). Where that is what you want, set match=\"none\"");
    return;
  }
  log_once(LogLevel::kWarning, "key-conflict:" + scope,
           named + "was stored for an input " + std::string(stored) +
               " and is now asked for with " + std::string(given) +
               ": the entry is replaced. One key must always mean the same input; inputs padded "
               "to different lengths are a likely cause (say which part of each row is true, "
               "mask=\"attention_mask\", or pad to a fixed length)");
}

}  // namespace modcache::cache
