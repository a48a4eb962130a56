// SPDX-License-Identifier: Apache-2.0
//
// Adds up what all processes that ever used a directory counted: those that run (each in a file of
// its own, counter_file.h), and those that ended, whose files are gathered into one file of totals.
//
// May be called by any process while others count. Nothing here is worth a failure of the cache: a
// file that is damaged or a stranger's counts as missing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "fs/file_system.h"
#include "store/counters/counted_day.h"
#include "store/directory/directory.h"

namespace modcache::store {

struct CounterTotals {
  std::vector<CountedDay> days;    // by day, then by scope; one for each pair
  std::int64_t since_us = 0;       // when they were set to zero, or began; 0: nothing was counted
  std::size_t live_processes = 0;  // that count here now; forked ones count with their parent
};

// The totals keep this many pairs of scope and day. Of more than that, the oldest days are added up
// to one, which has no scope.
inline constexpr std::size_t kMostCountedDays = 4096;

// Empty where nothing was counted. kNotFound: there is no directory. kInvalidArgument: `directory`
// is a file (a pack has no counters).
Result<CounterTotals> read_counters(fs::FileSystem& file_system, const std::string& directory);

// Sets them to zero, also those of processes that run. kBusy: another process held the directory's
// lock for all of `patience_ms`.
Status zero_counters(fs::FileSystem& file_system, const std::string& directory,
                     std::int64_t patience_ms = 2000);

// Adds the files of processes that ended to the totals and removes them, where there are at least
// `least_files` of them. A process that dies in the middle of it loses and doubles nothing.
Status gather_counters(const Directory& directory, std::size_t least_files,
                       std::int64_t patience_ms);

}  // namespace modcache::store
