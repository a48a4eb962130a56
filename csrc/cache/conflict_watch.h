// SPDX-License-Identifier: Apache-2.0
//
// ConflictWatch: what a process remembers of the scopes whose keys came with other inputs: that it
// has warned, whether they go on conflicting, and how many of their inputs on an accelerator were
// looked at.
//
// A scope whose inputs changed once conflicts once for each key, and its entries are replaced. One
// that has two inputs for a key for good conflicts again with what it just replaced: nothing more
// is stored for such a scope, since it would be replaced without end.
//
// Bounded; thread-safe; held across fork. Never fails.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/mutex.h"

namespace modcache::cache {

class ConflictWatch {
 public:
  // Keys that conflicted with what was stored after the scope's first conflict, before storing
  // stops; they must be a quarter of what was compared lately, too.
  static constexpr std::int64_t kMostRepeated = 256;
  // The calls of a scope whose inputs are looked at on an accelerator in any case, and one in so
  // many of the others.
  static constexpr std::int64_t kFirstCostlyCalls = 16;
  static constexpr std::uint64_t kOneOfCostlyCalls = 50;

  ConflictWatch();
  ~ConflictWatch();
  ConflictWatch(const ConflictWatch&) = delete;
  ConflictWatch& operator=(const ConflictWatch&) = delete;

  // A key of this scope came with another input than the entry that was stored then.
  void note_conflict(const std::string& scope, std::int64_t stored_at_us);
  // So many came with the same. Costs an atomic load while no scope has conflicts.
  void note_agreements(const std::string& scope, std::int64_t keys);
  // Costs an atomic load while no scope has stopped.
  bool has_stopped_storing(const std::string& scope);

  // Whether to look at the input of this call, which is costly: at the first ones, then at a share
  // of them that is chosen at random.
  bool looks_at_costly(const std::string& scope);

  // All scopes begin anew.
  void forget();

 private:
  static constexpr std::size_t kMostScopes = 1024;
  // When what was compared counts half.
  static constexpr std::int64_t kWindow = 4096;

  struct Scope {
    std::int64_t first_conflict_us = 0;  // since 1970; 0: there was none
    std::int64_t repeated = 0;
    std::int64_t compared = 0;
    std::int64_t costly_calls = 0;
    bool has_stopped = false;
  };

  Scope& scope_locked(const std::string& scope) MODCACHE_REQUIRES(mutex_);
  // Whether this made it stop.
  bool judge(Scope& scope) MODCACHE_REQUIRES(mutex_);
  static void report_stop(const std::string& scope);

  Mutex mutex_;
  std::unordered_map<std::string, Scope> scopes_ MODCACHE_GUARDED_BY(mutex_);
  std::atomic<bool> has_conflicts_{false};
  std::atomic<bool> has_stopped_{false};
  std::uint64_t random_ MODCACHE_GUARDED_BY(mutex_) = 1;
  std::uint64_t fork_registration_;
};

// Warns, once for each scope and kind of difference, that a key came with an input of signature
// `given` and its entry was computed from one of `stored`, with the likely causes and what to do.
void warn_of_conflict(std::string_view key, const std::string& scope, std::string_view given,
                      std::string_view stored);

}  // namespace modcache::cache
