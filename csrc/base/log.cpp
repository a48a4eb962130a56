// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <limits>
#include <unordered_map>
#include <utility>

#include "base/process_wide.h"

namespace modcache {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kRepeatAfter = std::chrono::seconds(30);
// Causes can contain names that callers choose, so the table is emptied when it reaches this size.
constexpr std::size_t kMostCauses = 4096;

struct Limiter : ProcessWide<Limiter> {
  std::unordered_map<std::string, Clock::time_point> quiet_until MODCACHE_GUARDED_BY(mutex);
  LogSink sink MODCACHE_GUARDED_BY(mutex);
};

std::atomic<LogLevel> current_level{LogLevel::kWarning};

void write_message(LogLevel level, const std::string& message) {
  const char* name = level == LogLevel::kError     ? "error"
                     : level == LogLevel::kWarning ? "warning"
                                                   : "info";
  std::fprintf(stderr, "modcache: %s: %s\n", name, message.c_str());
}

void log_limited(LogLevel level, std::string_view cause, const std::string& message,
                 Clock::duration quiet) {
  if (level > current_level.load(std::memory_order_relaxed) || level == LogLevel::kOff) return;
  Limiter& state = Limiter::instance();
  LogSink sink;
  {
    MutexLock lock(state.mutex);
    const auto now = Clock::now();
    if (state.quiet_until.size() >= kMostCauses) state.quiet_until.clear();
    auto [entry, is_new] = state.quiet_until.try_emplace(std::string(cause));
    if (!is_new && now < entry->second) return;
    entry->second = quiet == Clock::duration::max() ? Clock::time_point::max() : now + quiet;
    sink = state.sink;
  }
  if (sink) {
    sink(level, message);
  } else {
    write_message(level, message);
  }
}

}  // namespace

void set_log_level(LogLevel level) { current_level.store(level, std::memory_order_relaxed); }

void log(LogLevel level, std::string_view cause, const std::string& message) {
  log_limited(level, cause, message, kRepeatAfter);
}

void log_once(LogLevel level, std::string_view cause, const std::string& message) {
  log_limited(level, cause, message, Clock::duration::max());
}

void set_log_sink(LogSink sink) {
  Limiter& state = Limiter::instance();
  MutexLock lock(state.mutex);
  state.sink = std::move(sink);
}

void forget_logged_causes() {
  Limiter& state = Limiter::instance();
  MutexLock lock(state.mutex);
  state.quiet_until.clear();
}

}  // namespace modcache
