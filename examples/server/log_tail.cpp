// SPDX-License-Identifier: Apache-2.0
#include "log_tail.h"

#include <modcache/cache.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <utility>

// The library has this function: it calls `reader` after each message, until `reader` has taken
// all.
extern "C" void modcache_read_log(void (*reader)());

namespace server {
namespace {

constexpr std::size_t kMostMessages = 100;
constexpr std::size_t kLongestMessage = 2000;  // bytes

const char* name_of(std::int64_t level) {
  if (level <= 1) return "error";
  return level == 2 ? "warning" : "info";
}

}  // namespace

LogTail& LogTail::instance() {
  static LogTail* const tail = new LogTail;
  return *tail;
}

void LogTail::begin() { modcache_read_log(&LogTail::read); }

std::deque<LogTail::Message> LogTail::messages() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return messages_;
}

void LogTail::read() {
  try {
    static const c10::OperatorHandle take = modcache::detail::find("cache::_take_log", "");
    c10::Stack stack;
    take.callBoxed(&stack);
    const c10::List<std::int64_t> levels = stack.at(0).toIntList();
    const auto texts = stack.at(1).toListRef();
    for (std::size_t i = 0; i < texts.size(); ++i) {
      instance().add(levels.get(i), texts[i].toStringRef());
    }
  } catch (const std::exception& error) {  // a reader must not throw
    std::fprintf(stderr, "modcache_server: the log cannot be read: %s\n", error.what());
  }
}

void LogTail::add(std::int64_t level, std::string text) {
  const char* const name = name_of(level);
  std::fprintf(stderr, "modcache: %s: %s\n", name, text.c_str());
  if (text.size() > kLongestMessage) text.resize(kLongestMessage);
  const std::chrono::duration<double> at = std::chrono::system_clock::now().time_since_epoch();
  const std::lock_guard<std::mutex> lock(mutex_);
  messages_.push_back({next_++, at.count(), name, std::move(text)});
  if (messages_.size() > kMostMessages) messages_.pop_front();
}

}  // namespace server
