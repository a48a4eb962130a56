// SPDX-License-Identifier: Apache-2.0
#include "cache/run_times.h"

#include <algorithm>

namespace modcache::cache {

// The longest run of late, which fades: runs differ in their inputs, and a wait is for any of them.
void RunTimes::note(std::string_view scope, std::int64_t run_us) {
  std::atomic<std::int64_t>& usual_us = scopes_.of(scope).run_us;
  const std::int64_t run = std::max<std::int64_t>(run_us, 1);
  const std::int64_t usual = usual_us.load(std::memory_order_relaxed);
  const std::int64_t next = run >= usual ? run : usual - (usual - run) / 16;
  if (next != usual) usual_us.store(next, std::memory_order_relaxed);
}

std::chrono::microseconds RunTimes::patience(std::string_view scope) {
  const std::int64_t usual_us = scopes_.of(scope).run_us.load(std::memory_order_relaxed);
  if (usual_us == 0) return kLongestPatience;
  const std::int64_t bounded_us =
      std::min<std::int64_t>(usual_us, std::chrono::microseconds(kLongestPatience).count());
  return std::clamp<std::chrono::microseconds>(kTimesUsual * std::chrono::microseconds(bounded_us),
                                               kShortestPatience, kLongestPatience);
}

}  // namespace modcache::cache
