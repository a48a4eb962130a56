// SPDX-License-Identifier: Apache-2.0
#include "cache/conflict_watch.h"

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"

namespace modcache::cache {

// Updates that race may be lost: the numbers only decide when storing stops.
void ConflictWatch::record_conflict(const std::string& scope, std::int64_t stored_at_us) {
  has_conflicts_ = true;
  Scope* const known = scopes_.own_state(scope, /*makes=*/true);
  if (known == nullptr) return;
  std::int64_t first_us = 0;
  if (known->first_conflict_us.compare_exchange_strong(first_us, now_us())) return;
  if (stored_at_us < first_us || known->has_stopped()) return;
  known->repeated += kMatchesPerConflict;
  if (!known->has_stopped()) return;
  log_once(LogLevel::kWarning, "conflicts-stop:" + scope,
           "the keys of scope '" + scope.substr(0, 200) +
               "' keep coming with other inputs than their entries were computed from: this "
               "process stores nothing more for it, until modcache.clear() or a new setting of "
               "'match'. Hits that match are still used");
}

void ConflictWatch::record_matches(const std::string& scope, std::int64_t keys) {
  if (keys == 0 || !has_conflicts_.load(std::memory_order_relaxed)) return;
  Scope* const known = scopes_.own_state(scope, /*makes=*/false);
  if (known == nullptr || known->has_stopped()) return;
  known->repeated = std::max<std::int64_t>(known->repeated - keys, 0);
}

bool ConflictWatch::has_stopped_storing(const std::string& scope) {
  if (!has_conflicts_.load(std::memory_order_relaxed)) return false;
  const Scope* const known = scopes_.own_state(scope, /*makes=*/false);
  return known != nullptr && known->has_stopped();
}

bool ConflictWatch::samples_costly_input(const std::string& scope) {
  const std::uint64_t call = costly_calls_.of(scope)++;
  // Multiples of the golden ratio spread evenly and without a period, which the keys may have.
  constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15ULL;
  return call < kFirstCostlyCalls || call * kGolden < ~std::uint64_t{0} / kCostlyInterval;
}

void ConflictWatch::forget() {
  has_conflicts_ = false;
  scopes_.forget([](Scope& scope) {
    scope.first_conflict_us = 0;
    scope.repeated = 0;
  });
  costly_calls_.forget([](std::atomic<std::uint64_t>& calls) { calls = 0; });
}

void warn_of_conflict(std::string_view key, const std::string& scope, std::string_view given,
                      std::string_view stored) {
  const std::string named = "key '" + std::string(key.substr(0, 200)) + "' ";
  if (stored == given) {
    log_once(LogLevel::kWarning, "key-conflict-values:" + scope,
             named +
                 "was stored for another input of the same shape: the entry is not used, and the "
                 "module is run. One key must always mean the same input. Likely causes: two "
                 "datasets under the same keys, such as a training and a validation set that both "
                 "use their index (give each a prefix or a scope of its own), or inputs that were "
                 "augmented before the cached module (augment after it, or put the variant into "
                 "the key). If this is intended, set match=\"none\"");
    return;
  }
  log_once(
      LogLevel::kWarning, "key-conflict:" + scope,
      named + "was stored for an input " + std::string(stored) + ", and this one is " +
          std::string(given) +
          ": the entry is replaced. One key must always mean the same input. A likely cause is "
          "padding to different lengths: pass mask=\"attention_mask\", or pad to a fixed "
          "length");
}

}  // namespace modcache::cache
