// SPDX-License-Identifier: Apache-2.0
#include "cache/verify_watch.h"

#include <algorithm>
#include <cmath>

#include "base/fork.h"
#include "base/log.h"
#include "base/random.h"

namespace modcache::cache {
namespace {

struct Draw {
  double share = 0;
  std::uint64_t spared = 0;  // hits before the next one that is compared
  std::uint64_t random = 0;

  // A number in (0, 1].
  double next() {
    if (random == 0) random = random_number() | 1;
    random = random * 6364136223846793005U + 1442695040888963407U;
    return (static_cast<double>(random >> 11) + 1) / static_cast<double>(std::uint64_t{1} << 53);
  }
  // The distances between hits of which each is drawn by itself are distributed geometrically.
  void draw() {
    constexpr double kMost = 1e15;
    const double distance = share >= 1 ? 0 : std::floor(std::log(next()) / std::log1p(-share));
    spared = static_cast<std::uint64_t>(std::min(distance, kMost));
  }
};
thread_local Draw hit_draw;

Draw& draw_of(double share) {
  if (hit_draw.share != share) {
    hit_draw.share = share;
    hit_draw.draw();
  }
  return hit_draw;
}

}  // namespace

std::vector<std::size_t> HitDraw::chosen(double share, std::size_t hits) {
  std::vector<std::size_t> chosen;
  if (share <= 0 || spares(share, hits)) return chosen;
  Draw& draw = draw_of(share);
  std::size_t place = 0;
  while (draw.spared < hits - place) {
    place += static_cast<std::size_t>(draw.spared);
    chosen.push_back(place++);
    draw.draw();
  }
  draw.spared -= hits - place;
  return chosen;
}

bool HitDraw::spares(double share, std::size_t hits) {
  if (share <= 0) return true;
  Draw& draw = draw_of(share);
  if (draw.spared < hits) return false;
  draw.spared -= hits;
  return true;
}

VerifyWatch::VerifyWatch() : fork_registration_(hold_across_fork(mutex_)) {}

VerifyWatch::~VerifyWatch() { stop_holding_across_fork(fork_registration_); }

bool VerifyWatch::switches_off(Scope& scope, bool is_different) {
  ++scope.compared;
  if (is_different) ++scope.different;
  const bool switches_off = !scope.is_switched_off && scope.different >= kFewestDifferences &&
                            scope.different * kComparisonsPerDifference > scope.compared;
  if (switches_off) scope.is_switched_off = true;
  return switches_off;
}

void VerifyWatch::note(const Comparison& comparison) {
  Scope now;
  {
    MutexLock lock(mutex_);
    // Those that are switched off stay known: without room the others are learned anew.
    if (scopes_.size() >= kMostScopes && scopes_.count(comparison.scope) == 0) {
      for (auto scope = scopes_.begin(); scope != scopes_.end();) {
        scope = scope->second.is_switched_off ? std::next(scope) : scopes_.erase(scope);
      }
    }
    Scope& scope = scopes_[comparison.scope];
    if (!switches_off(scope, !comparison.difference.empty())) {
      if (scope.compared > kWindow) {
        scope.compared /= 2;
        scope.different /= 2;
      }
      return;
    }
    has_switched_off_.store(true, std::memory_order_relaxed);
    now = scope;
  }
  // Without the lock, because the log may call Python.
  log(LogLevel::kError, "verify-off:" + comparison.scope,
      "verify_share: " + std::to_string(now.different) + " of " + std::to_string(now.compared) +
          " results of " + comparison.who +
          " that were computed anew are not what is stored under "
          "scope '" +
          comparison.scope.substr(0, 200) + "', such as key '" +
          std::string(comparison.key.substr(0, 200)) + "': " + std::string(comparison.difference) +
          ". THE CACHE IS SWITCHED OFF FOR THIS SCOPE in this process: its calls run the module, "
          "and count in bypassed_verify. Likely causes: another model or other weights under the "
          "same scope= name, or a module that is no function of its input. Find the cause, remove "
          "what is stored (modcache.clear(scope), or modcache clear DIR --scope SCOPE), which "
          "switches the scope on again in the process that calls it, or restart");
}

bool VerifyWatch::is_switched_off(const std::string& scope) {
  if (!has_switched_off()) return false;
  MutexLock lock(mutex_);
  const auto known = scopes_.find(scope);
  return known != scopes_.end() && known->second.is_switched_off;
}

void VerifyWatch::forget(const std::string& scope) {
  MutexLock lock(mutex_);
  if (scope.empty()) {
    scopes_.clear();
  } else {
    scopes_.erase(scope);
  }
  const bool has_switched_off = std::any_of(scopes_.begin(), scopes_.end(), [](const auto& known) {
    return known.second.is_switched_off;
  });
  has_switched_off_.store(has_switched_off, std::memory_order_relaxed);
}

}  // namespace modcache::cache
