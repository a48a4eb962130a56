// SPDX-License-Identifier: Apache-2.0
//
// The file of totals: what processes counted that ended. It is replaced as a whole.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "store/counters/counted_day.h"
#include "store/directory/directory.h"

namespace modcache::store {

struct TotalsFile {
  std::uint64_t serial = 0;  // another one after each replacement
  std::int64_t since_us = 0;
  bool was_zeroed = false;              // by somebody, at `since_us`
  std::vector<std::uint64_t> gathered;  // files whose counts are in here, and may still be there
  std::vector<CountedDay> days;
};

// Empty where there is no file, or a damaged one. kUnsupportedVersion: it is of another version.
// kForeign: something else is in its place.
Result<TotalsFile> read_totals_file(const Directory& directory);

// Replaces the file, under a new serial. After power loss the old one or the new one is there.
// REQUIRES: the directory's lock is held, and the folder of counters exists.
Status write_totals_file(const Directory& directory, const TotalsFile& totals);

}  // namespace modcache::store
