// SPDX-License-Identifier: Apache-2.0
//
// ConflictWatch: what a process remembers of scopes whose keys came with other inputs: whether they
// keep conflicting, and how many of their inputs on an accelerator were sampled.
//
// A scope whose inputs changed once conflicts once for each key, and its entries are replaced. A
// scope that permanently has two inputs for a key conflicts again with the entries that just
// replaced others. Storing then stops for that scope, since replacing would never end.
//
// Bounded; thread-safe; usable in a forked child. Never fails.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "cache/scope_table.h"

namespace modcache::cache {

class ConflictWatch {
 public:
  // Storing stops after this many conflicts with entries that were stored after the scope's first
  // conflict. Three matching keys make up for one such conflict.
  static constexpr std::int64_t kMaxRepeated = 256;
  static constexpr std::int64_t kMatchesPerConflict = 3;
  // Inputs on an accelerator are sampled in the first calls of a scope, then in one of this many.
  static constexpr std::uint64_t kFirstCostlyCalls = 16;
  static constexpr std::uint64_t kCostlyInterval = 50;

  // A key of this scope came with another input than the entry that was stored at that time.
  void record_conflict(const std::string& scope, std::int64_t stored_at_us);
  // This many keys came with the same input. Costs an atomic load while no scope has conflicts.
  void record_matches(const std::string& scope, std::int64_t keys);
  // Costs an atomic load while no scope has conflicts.
  bool has_stopped_storing(const std::string& scope);

  // Returns whether to sample the input of this call, which is costly.
  bool samples_costly_input(const std::string& scope);

  // Forgets all scopes.
  void forget();

 private:
  struct Scope {
    std::atomic<std::int64_t> first_conflict_us{0};  // since 1970; 0: there was none
    std::atomic<std::int64_t> repeated{0};           // kMatchesPerConflict for each conflict

    bool has_stopped() const { return repeated >= kMaxRepeated * kMatchesPerConflict; }
  };

  std::atomic<bool> has_conflicts_{false};
  ScopeTable<Scope> scopes_;  // of those that had a conflict
  ScopeTable<std::atomic<std::uint64_t>> costly_calls_;
};

// Warns, once for each scope and kind of difference, that a key came with an input of signature
// `given` and its entry was computed from one of `stored`, with likely causes and hints.
void warn_of_conflict(std::string_view key, const std::string& scope, std::string_view given,
                      std::string_view stored);

}  // namespace modcache::cache
