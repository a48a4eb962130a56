// SPDX-License-Identifier: Apache-2.0
//
// VerifyWatch: what came of comparing hits with fresh results (option verify_share), by scope, and
// which scopes are switched off for it in this process.
//
// A scope is switched off after kFewestDifferences, if these are more than one in
// kComparisonsPerDifference of what was compared of late. Where the cause is a common one (weights
// that changed under a scope's name, say) each comparison differs, and three are enough; one alone
// may be a single bad entry, which is dropped and replaced. A scope that differs in fewer than one
// of a hundred comparisons mends itself that way.
//
// Also draws the hits that are compared. Bounded; thread-safe; held across fork. Never fails.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"

namespace modcache::cache {

// Draws each hit with the probability `share`, at the cost of a subtraction for most: what is drawn
// is the distance to the next one, for each thread.
class HitDraw {
 public:
  // Returns which of so many hits in a row are to be compared, in ascending order.
  static std::vector<std::size_t> chosen(double share, std::size_t hits);
  // Returns whether none is; otherwise nothing was drawn, and the next question is about the same
  // hits.
  static bool spares(double share, std::size_t hits);
};

class VerifyWatch {
 public:
  static constexpr std::int64_t kFewestDifferences = 3;
  static constexpr std::int64_t kComparisonsPerDifference = 100;

  // A comparison of what is stored under `key` with what a module of this scope returned now.
  struct Comparison {
    const std::string& scope;
    std::string who;  // the class and method, for the message
    std::string_view key;
    std::string_view difference;  // empty: there is none
  };

  VerifyWatch();
  ~VerifyWatch();
  VerifyWatch(const VerifyWatch&) = delete;
  VerifyWatch& operator=(const VerifyWatch&) = delete;

  // Logs one message when this switches the scope off.
  void note(const Comparison& comparison);

  // Both cost an atomic load while no scope is switched off.
  bool has_switched_off() const { return has_switched_off_.load(std::memory_order_relaxed); }
  bool is_switched_off(const std::string& scope);

  // The scope begins anew; all do where it is empty.
  void forget(const std::string& scope);

 private:
  static constexpr std::size_t kMostScopes = 1024;
  // When what was compared counts half.
  static constexpr std::int64_t kWindow = 4096;

  struct Scope {
    std::int64_t compared = 0;
    std::int64_t different = 0;
    bool is_switched_off = false;
  };

  static bool switches_off(Scope& scope, bool is_different);

  Mutex mutex_;
  std::unordered_map<std::string, Scope> scopes_ MODCACHE_GUARDED_BY(mutex_);
  std::atomic<bool> has_switched_off_{false};
  std::uint64_t fork_registration_;
};

}  // namespace modcache::cache
