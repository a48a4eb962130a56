// SPDX-License-Identifier: Apache-2.0
//
// Counts for a whole store: its contents, and the result of an eviction.
#pragma once

#include <cstdint>

namespace modcache::store {

struct Totals {
  std::int64_t entries = 0;
  std::int64_t size_bytes = 0;  // of all files on disk
};

struct Evicted {
  std::int64_t entries = 0;
  std::int64_t freed_bytes = 0;  // of files that were removed
  // The directory is still larger than requested, because a process keeps a segment to write to.
  bool is_hindered = false;
};

}  // namespace modcache::store
