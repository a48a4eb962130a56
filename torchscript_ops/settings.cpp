// SPDX-License-Identifier: Apache-2.0
//
// Settings, modes and counters of the process.
#include <ATen/core/Dict.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "arguments.h"
#include "cache/cache.h"
#include "module/call/current_cache.h"
#include "registration.h"

namespace modcache::ops {
namespace {

using cache::Cache;
using Options = c10::Dict<std::string, std::string>;
using Counts = c10::Dict<std::string, std::int64_t>;

void configure(const Options& options) {
  check_ok("cache::configure", module::current_cache()->configure(given_options(options)));
}

Options settings() {
  Options shown;
  for (const auto& [name, value] : module::current_cache()->settings()) shown.insert(name, value);
  return shown;
}

Counts stats() {
  Counts counts;
  for (const auto& [name, count] : module::current_cache()->stats()) counts.insert(name, count);
  return counts;
}

void reset_stats() { module::current_cache()->reset_stats(); }

std::string metrics() { return module::current_cache()->metrics(); }

Counts bytes_by_scope() {
  Counts bytes;
  for (const auto& [scope, count] : module::current_cache()->bytes_by_scope())
    bytes.insert(scope, count);
  return bytes;
}

void disable_memory_tier() { module::current_cache()->disable_memory_tier(); }

void set_mode(const std::string& mode) {
  auto parsed = cache::parse_mode(mode);
  check_ok("cache::set_mode", parsed.status());
  cache::default_cache()->set_mode(parsed.value());
}

// Combines `mode` into the calling thread's level; returns what leave_mode() takes to undo it, last
// in, first out.
std::int64_t enter_mode(const std::string& mode) {
  auto parsed = cache::parse_mode(mode);
  check_ok("modcache.mode", parsed.status());
  return static_cast<std::int64_t>(cache::enter_mode(parsed.value()));
}

void leave_mode(std::int64_t previous) {
  const auto mode = cache::mode_from_number(previous);
  TORCH_CHECK_VALUE(mode.has_value(), "cache::_leave_mode: previous is ", previous,
                    ", but must be what cache::_enter_mode returned");
  cache::leave_mode(*mode);
}

// Sets what the tasks of the calling thread leave of the mode (cache/mode.h).
void follow_modes(const std::vector<std::string>& modes) {
  std::vector<cache::Mode> parsed;
  for (const std::string& mode : modes) {
    auto known = cache::parse_mode(mode);
    check_ok("modcache.mode", known.status());
    parsed.push_back(known.value());
  }
  cache::follow_modes(parsed);
}

// The effective one of the calling thread.
std::string mode() { return std::string(cache::mode_name(module::current_cache()->mode())); }

// Returns the modes of the process, the calling thread and the directory. If the first two leave
// nothing to be cached, the directory is not asked, and is "on".
std::tuple<std::string, std::string, std::string> mode_levels() {
  Cache& cache = *module::current_cache();
  const cache::Mode process = cache.process_mode();
  const cache::Mode thread = cache::thread_mode();
  const bool is_off = combine(process, thread) == cache::Mode::kOff;
  const cache::Mode directory = is_off ? cache::Mode::kOn : cache.directory_mode();
  return {std::string(mode_name(process)), std::string(mode_name(thread)),
          std::string(mode_name(directory))};
}

// Sets it for the calling thread, and returns the previous value.
bool store_all(bool stores_all) { return cache::Cache::set_admits_all(stores_all); }

}  // namespace

void register_settings(torch::Library& m) {
  define(m, "configure(Dict(str, str) options) -> ()", &configure);
  define(m, "settings() -> Dict(str, str)", &settings);
  define(m, "stats() -> Dict(str, int)", &stats);
  define(m, "reset_stats() -> ()", &reset_stats);
  define(m, "metrics() -> str", &metrics);
  define(m, "bytes_by_scope() -> Dict(str, int)", &bytes_by_scope);
  define(m, "_disable_memory_tier() -> ()", &disable_memory_tier);
  define(m, "set_mode(str mode) -> ()", &set_mode);
  define(m, "mode() -> str", &mode);
  define(m, "_enter_mode(str mode) -> int", &enter_mode);
  define(m, "_leave_mode(int previous) -> ()", &leave_mode);
  define(m, "_follow_modes(str[] modes) -> ()", &follow_modes);
  define(m, "_store_all(bool stores_all) -> bool", &store_all);
  define(m, "_mode_levels() -> (str, str, str)", &mode_levels);
}

}  // namespace modcache::ops
