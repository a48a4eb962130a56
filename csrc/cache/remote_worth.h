// SPDX-License-Identifier: Apache-2.0
//
// RemoteWorth: whether asking a server for some keys of a scope is likely to take less time than
// running them. A server that works as it should can still be slower than the module.
//
// It compares what the question takes (a round trip, and what values add to it) with what hits save
// (the runs that they spare, times the share of keys that are found). Where that is a loss it may
// still be asked now and then, to notice a change, for kExploringShare of the time that runs take;
// and never where the round trip alone takes longer than the runs. Where no run is known there is
// nothing to compare with, as for callers that only look up: the server is asked.
//
// Steers what calls cost, never what they return. Thread-safe without a lock; usable in a forked
// child.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "cache/scope_table.h"

namespace modcache::cache {

class RemoteWorth {
 public:
  static constexpr double kExploringShare = 0.02;

  // `round_trip_us`: what the server takes for an empty question; 0: not known.
  bool is_worth_asking(std::string_view scope, std::size_t rows, std::int64_t round_trip_us);
  // A question took so long, and found so many of its rows. `round_trip_us`: as above.
  void note_question(std::string_view scope, std::size_t rows, std::size_t found,
                     std::int64_t took_us, std::int64_t round_trip_us);
  // Runs of so many rows took so long for each row. 0 rows: they were not ours but an entry's that
  // was found, which earns nothing for exploring.
  void note_runs(std::string_view scope, std::int64_t run_us, std::size_t rows);

 private:
  struct Known {
    std::atomic<std::int64_t> run_us{0};        // of one row; 0: not known
    std::atomic<std::int64_t> question_us{0};   // of a small question; 0: not known
    std::atomic<std::int64_t> values_us{0};     // that a small one takes beyond a round trip
    std::atomic<std::int64_t> row_ns{0};        // that each row of a large one adds
    std::atomic<std::int64_t> missing_ppm{0};   // keys in a million that were not found
    std::atomic<std::int64_t> allowance_us{0};  // left for exploring
  };
  ScopeTable<Known> scopes_;
};

}  // namespace modcache::cache
