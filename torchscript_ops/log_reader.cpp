// SPDX-License-Identifier: Apache-2.0
#include "log_reader.h"

#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "base/fork.h"
#include "base/log.h"
#include "base/process_wide.h"
#include "base/utf8.h"
#include "registration.h"

namespace modcache::ops {
namespace {

// Nobody reads while the process is stuck; the first messages say most.
constexpr std::size_t kMostWaiting = 1000;
constexpr auto kPatience = std::chrono::seconds(1);

class LogReader : public ProcessWide<LogReader> {
 public:
  void set(void (*reader)()) {
    {
      MutexLock lock(mutex);
      forget_the_parents();
      reader_ = reader;
    }
    if (reader != nullptr) {
      set_log_sink([this](LogLevel level, const std::string& message) { add(level, message); });
      return;
    }
    set_log_sink({});
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (is_being_read() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  std::tuple<c10::List<std::int64_t>, c10::List<std::string>> take() {
    std::deque<Message> taken;
    {
      MutexLock lock(mutex);
      forget_the_parents();
      taken.swap(waiting_);
      ++takes_;
    }
    c10::List<std::int64_t> levels;
    c10::List<std::string> texts;
    for (auto& [level, text] : taken) {
      levels.push_back(static_cast<std::int64_t>(level));
      texts.push_back(text_of_path(text));  // Python raises for other bytes
    }
    return {std::move(levels), std::move(texts)};
  }

 private:
  using Message = std::pair<LogLevel, std::string>;

  void add(LogLevel level, const std::string& message) {
    {
      MutexLock lock(mutex);
      forget_the_parents();
      if (waiting_.size() >= kMostWaiting) return;
      waiting_.emplace_back(level, message);
      if (is_being_read_ || reader_ == nullptr) return;
      is_being_read_ = true;
    }
    try {
      std::thread([this] { read(); }).detach();
    } catch (const std::exception&) {  // no thread to be had: the next message tries again
      MutexLock lock(mutex);
      is_being_read_ = false;
    }
  }

  // A Python that is being torn down ends the thread inside of the reader; it never comes back
  // then, and nothing here may stand in the way of that.
  void read() {
    while (void (*reader)() = reader_of_what_waits()) {
      reader();
    }
  }

  // Null, once nothing waits: the thread ends. So it does when the reader took nothing.
  void (*reader_of_what_waits())() {
    MutexLock lock(mutex);
    const bool is_useless = was_called_ && takes_ == takes_before_;
    takes_before_ = takes_;
    is_being_read_ = was_called_ = !waiting_.empty() && reader_ != nullptr && !is_useless;
    return is_being_read_ ? reader_ : nullptr;
  }

  bool is_being_read() {
    MutexLock lock(mutex);
    return is_being_read_;
  }

  // A forked child has no reading thread, and what waits is its parent's to tell.
  void forget_the_parents() MODCACHE_REQUIRES(mutex) {
    if (generation_ == fork_generation()) return;
    generation_ = fork_generation();
    is_being_read_ = false;
    was_called_ = false;
    waiting_.clear();
  }

  std::deque<Message> waiting_ MODCACHE_GUARDED_BY(mutex);
  void (*reader_)() MODCACHE_GUARDED_BY(mutex) = nullptr;
  bool is_being_read_ MODCACHE_GUARDED_BY(mutex) = false;
  std::uint64_t takes_ MODCACHE_GUARDED_BY(mutex) = 0;         // by readers
  std::uint64_t takes_before_ MODCACHE_GUARDED_BY(mutex) = 0;  // the thread's last call
  bool was_called_ MODCACHE_GUARDED_BY(mutex) = false;         // by the thread that reads now
  std::uint64_t generation_ MODCACHE_GUARDED_BY(mutex) = fork_generation();
};

}  // namespace

void register_log_reader(torch::Library& m) {
  define(m, "_take_log() -> (int[], str[])", [] { return LogReader::instance().take(); });
}

}  // namespace modcache::ops

void modcache_read_log(void (*reader)()) { modcache::ops::LogReader::instance().set(reader); }
