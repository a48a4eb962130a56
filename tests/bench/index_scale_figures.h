// SPDX-License-Identifier: Apache-2.0
//
// What index_scale.cpp measures, and how it tells.
#pragma once

#include <array>
#include <cstddef>
#include <cstdio>
#include <vector>

namespace modcache::bench {

enum Figure {
  kFillSeconds,
  kOpenMs,
  kFewFirst,
  kFewHit,
  kFewMiss,
  kFewBatch,
  kAnyFirst,
  kAnyHit,
  kAnyMiss,
  kAnyBatch,
  kMapBytes,
  kDatabaseBytes,
  kOpenOwnKib,
  kOpenFilesKib,
  kFewOwnKib,
  kFewFilesKib,
  kAnyOwnKib,
  kAnyFilesKib,
  kReadersPssMib,
  kReadersPrivateMib,
  kEvictMs,
  kEvictedEntries,
  kFigureCount
};
using Figures = std::array<double, kFigureCount>;

struct Meaning {
  const char* name;
  const char* text;
};
// "few": the same 1,000 keys at every size. "any": of all keys at random. "first": this process has
// not asked for them before.
inline constexpr Meaning kFigures[kFigureCount] = {
    {"fill_s", "filling, s"},
    {"open_ms", "opening, ms"},
    {"hit_few_first_ns", "hit, few keys, first, ns"},
    {"hit_few_ns", "hit, few keys, ns"},
    {"miss_few_ns", "miss, few keys, ns"},
    {"batch_few_ns", "hit in a batch, few keys, ns per row"},
    {"hit_any_first_ns", "hit, any key, first, ns"},
    {"hit_any_ns", "hit, any key, ns"},
    {"miss_any_ns", "miss, any key, ns"},
    {"batch_any_ns", "hit in a batch, any key, ns per row"},
    {"map_bytes_per_entry", "index.map, bytes per entry"},
    {"database_bytes_per_entry", "database, bytes per entry"},
    {"own_kib_open", "own memory after opening, KiB"},
    {"files_kib_open", "mapped files after opening, KiB"},
    {"own_kib_few", "own memory after few keys, KiB"},
    {"files_kib_few", "mapped files after few keys, KiB"},
    {"own_kib_any", "own memory after any keys, KiB"},
    {"files_kib_any", "mapped files after any keys, KiB"},
    {"readers_pss_mib", "all readers, sum of PSS, MiB"},
    {"readers_private_mib", "all readers, sum of private, MiB"},
    {"evict_ms", "evicting 10 %, ms"},
    {"evicted_entries", "entries evicted"},
};

inline void print_table(const std::vector<std::size_t>& sizes,
                        const std::vector<Figures>& figures) {
  std::printf("%-38s", "entries");
  for (const std::size_t size : sizes) std::printf("%12zu", size);
  for (std::size_t i = 0; i < kFigureCount; ++i) {
    std::printf("\n%-38s", kFigures[i].text);
    for (const Figures& of_size : figures) {
      std::printf(of_size[i] < 100 ? "%12.1f" : "%12.0f", of_size[i]);
    }
  }
  const double ratio = figures.back()[kFewHit] / figures.front()[kFewHit];
  std::printf("\nA hit among %zu takes %.2f x one among %zu.\n", sizes.back(), ratio,
              sizes.front());
}

inline void print_json(const std::vector<std::size_t>& sizes, const std::vector<Figures>& figures) {
  for (std::size_t size = 0; size < figures.size(); ++size) {
    std::printf("%s{\"entries\": %zu", size == 0 ? "[" : ",\n ", sizes[size]);
    for (std::size_t i = 0; i < kFigureCount; ++i) {
      std::printf(", \"%s\": %.6g", kFigures[i].name, figures[size][i]);
    }
    std::printf("}");
  }
  std::printf("]\n");
}

}  // namespace modcache::bench
