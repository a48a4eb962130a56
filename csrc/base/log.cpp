// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <limits>
#include <unordered_map>
#include <utility>

#include "base/fork.h"
#include "base/mutex.h"

namespace modcache {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kRepeatAfter = std::chrono::seconds(30);
// Causes can carry names that callers choose; forgetting them all now and then bounds the memory.
constexpr std::size_t kMostCauses = 4096;

struct Limiter {
  Mutex mutex;
  std::unordered_map<std::string, Clock::time_point> quiet_until MODCACHE_GUARDED_BY(mutex);
  LogSink sink MODCACHE_GUARDED_BY(mutex);
};

// Never destroyed: threads may log while the process exits.
Limiter& limiter() {
  static Limiter* const instance = [] {
    auto* created = new Limiter;
    hold_across_fork(created->mutex);
    return created;
  }();
  return *instance;
}

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
  Limiter& state = limiter();
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
LogLevel log_level() { return current_level.load(std::memory_order_relaxed); }

void log(LogLevel level, std::string_view cause, const std::string& message) {
  log_limited(level, cause, message, kRepeatAfter);
}

void log_once(LogLevel level, std::string_view cause, const std::string& message) {
  log_limited(level, cause, message, Clock::duration::max());
}

void set_log_sink(LogSink sink) {
  Limiter& state = limiter();
  MutexLock lock(state.mutex);
  state.sink = std::move(sink);
}

}  // namespace modcache
