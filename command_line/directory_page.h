// SPDX-License-Identifier: Apache-2.0
//
// DirectoryPage: what `modcache report` writes: one page of HTML about a directory or a pack, for a
// browser that has nothing but this file. The facts stand in it as JSON, and the script of
// report_page/ draws them; it loads nothing, and its policy lets no other script run.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "command_line/cache_directory.h"
#include "command_line/disk_files.h"
#include "store/counters/counter_totals.h"

namespace modcache::command_line {

struct PageFacts {
  std::string path;
  std::string mode;  // empty: it cannot be asked
  bool is_pack = false;
  std::int64_t made_at_us = 0;
  std::int64_t budget_bytes = 0;  // as the environment of this process sets it
  std::vector<KnownScope> scopes;
  DiskFiles files;
  store::CounterTotals counters;
};

// Every page begins so, by which a file is known as one.
inline constexpr std::string_view kPageBeginning =
    "<!doctype html>\n<!-- made by modcache report -->\n";

std::string directory_page(const PageFacts& facts);

}  // namespace modcache::command_line
