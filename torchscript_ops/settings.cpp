// SPDX-License-Identifier: Apache-2.0
//
// Settings and counters of the process.
#include <ATen/core/Dict.h>

#include <cstdint>
#include <string>

#include "arguments.h"
#include "cache/cache.h"
#include "registration.h"

namespace modcache::ops {
namespace {

using cache::Cache;
using Options = c10::Dict<std::string, std::string>;
using Counts = c10::Dict<std::string, std::int64_t>;

void configure(const Options& options) {
  cache::Options given;
  for (const auto& option : options) given.emplace(option.key(), option.value());
  check_ok("cache::configure", Cache::instance().configure(given));
}

Options settings() {
  Options shown;
  for (const auto& [name, value] : Cache::instance().settings()) shown.insert(name, value);
  return shown;
}

Counts stats() {
  Counts counts;
  for (const auto& [name, count] : Cache::instance().stats()) counts.insert(name, count);
  return counts;
}

void reset_stats() { Cache::instance().reset_stats(); }

std::string metrics() { return Cache::instance().metrics(); }

Counts bytes_by_scope() {
  Counts bytes;
  for (const auto& [scope, count] : Cache::instance().bytes_by_scope()) bytes.insert(scope, count);
  return bytes;
}

void disable_memory_tier() { Cache::instance().disable_memory_tier(); }

}  // namespace

void register_settings(torch::Library& m) {
  define(m, "configure(Dict(str, str) options) -> ()", &configure);
  define(m, "settings() -> Dict(str, str)", &settings);
  define(m, "stats() -> Dict(str, int)", &stats);
  define(m, "reset_stats() -> ()", &reset_stats);
  define(m, "metrics() -> str", &metrics);
  define(m, "bytes_by_scope() -> Dict(str, int)", &bytes_by_scope);
  define(m, "_disable_memory_tier() -> ()", &disable_memory_tier);
}

}  // namespace modcache::ops
