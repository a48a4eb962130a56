// SPDX-License-Identifier: Apache-2.0
#include "cache/remote_worth.h"

#include <algorithm>

namespace modcache::cache {
namespace {

constexpr std::size_t kSmallQuestion = 4;
constexpr std::int64_t kMillion = 1'000'000;
// A loss of less is within what the measurements are good for.
constexpr std::int64_t kToleranceUs = 200;
// So much may be saved up for exploring.
constexpr std::int64_t kMostAllowanceUs = 1'000'000;

// Follows what is seen; the first value is taken as it is.
void follow(std::atomic<std::int64_t>& average, std::int64_t seen) {
  const std::int64_t before = average.load(std::memory_order_relaxed);
  const std::int64_t next = before == 0 ? seen : before + (seen - before) / 4;
  average.store(std::max<std::int64_t>(next, 1), std::memory_order_relaxed);
}

// The same for times of which a single long one says little: a busy machine makes those.
void follow_down(std::atomic<std::int64_t>& average, std::int64_t seen) {
  const std::int64_t before = average.load(std::memory_order_relaxed);
  if (before != 0 && seen < before) return average.store(std::max<std::int64_t>(seen, 1));
  follow(average, seen);
}

}  // namespace

bool RemoteWorth::is_worth_asking(std::string_view scope, std::size_t rows,
                                  std::int64_t round_trip_us) {
  Known& known = scopes_.of(scope);
  const std::int64_t run_us = known.run_us.load(std::memory_order_relaxed);
  if (run_us == 0) return true;
  const auto count = static_cast<std::int64_t>(rows);
  // The round trip is measured in the background, so it is known to be better before a call tries.
  const std::int64_t base_us =
      round_trip_us != 0 ? round_trip_us : known.question_us.load(std::memory_order_relaxed);
  // Each kind goes by what questions of its kind took: one of either that was late says nothing of
  // the other, and would not be set right by it.
  const std::int64_t values_us = rows <= kSmallQuestion
                                     ? known.values_us.load(std::memory_order_relaxed)
                                     : count * known.row_ns.load(std::memory_order_relaxed) / 1000;
  const std::int64_t cost_us = std::max<std::int64_t>(base_us + values_us - kToleranceUs, 0);
  const std::int64_t most_us = count * run_us;
  // The time that a row adds was seen when the server was last asked, so it must not keep it from
  // being asked.
  if (base_us - kToleranceUs >= most_us) return false;
  const std::int64_t found_ppm = kMillion - known.missing_ppm.load(std::memory_order_relaxed);
  if (static_cast<double>(cost_us) <=
      static_cast<double>(most_us) * static_cast<double>(found_ppm) / kMillion) {
    return true;
  }
  const std::int64_t allowance_us = known.allowance_us.load(std::memory_order_relaxed);
  if (allowance_us < cost_us) return false;
  known.allowance_us.store(allowance_us - cost_us, std::memory_order_relaxed);
  return true;
}

void RemoteWorth::note_question(std::string_view scope, std::size_t rows, std::size_t found,
                                std::int64_t took_us, std::int64_t round_trip_us) {
  Known& known = scopes_.of(scope);
  const std::int64_t base_us =
      round_trip_us != 0 ? round_trip_us : known.question_us.load(std::memory_order_relaxed);
  if (rows <= kSmallQuestion) {
    follow_down(known.question_us, took_us);
    if (round_trip_us != 0)
      follow_down(known.values_us, std::max<std::int64_t>(took_us - base_us, 1));
  } else {
    const auto count = static_cast<std::int64_t>(rows);
    const std::int64_t row_ns = std::max<std::int64_t>(took_us - base_us, 0) * 1000 / count;
    follow_down(known.row_ns, row_ns);
  }
  // It begins with the hope that all is there, which a few questions correct.
  const auto missing = static_cast<std::int64_t>(rows - found);
  const std::int64_t missing_ppm = missing * kMillion / static_cast<std::int64_t>(rows);
  const std::int64_t before_ppm = known.missing_ppm.load(std::memory_order_relaxed);
  known.missing_ppm.store(before_ppm + (missing_ppm - before_ppm) / 4, std::memory_order_relaxed);
}

void RemoteWorth::note_runs(std::string_view scope, std::int64_t run_us, std::size_t rows) {
  Known& known = scopes_.of(scope);
  const std::int64_t run = std::max<std::int64_t>(run_us, 1);
  follow(known.run_us, run);
  const auto earned_us = static_cast<std::int64_t>(static_cast<double>(run) *
                                                   static_cast<double>(rows) * kExploringShare);
  const std::int64_t allowance_us = known.allowance_us.load(std::memory_order_relaxed);
  known.allowance_us.store(std::min(allowance_us + earned_us, kMostAllowanceUs),
                           std::memory_order_relaxed);
}

}  // namespace modcache::cache
