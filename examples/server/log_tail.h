// SPDX-License-Identifier: Apache-2.0
//
// The last messages of the cache's log, for the status page. All go to standard error as well.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>

namespace server {

class LogTail {
 public:
  struct Message {
    std::int64_t number = 0;
    double at_s = 0;  // since 1970
    std::string level;
    std::string text;
  };
  // The one of the process. It is never destroyed, as the library's thread may come late.
  static LogTail& instance();
  // From now on messages come here. Any thread, once.
  void begin();
  std::deque<Message> messages() const;

 private:
  LogTail() = default;
  static void read();  // as the library calls it
  void add(std::int64_t level, std::string text);

  mutable std::mutex mutex_;
  std::deque<Message> messages_;
  std::int64_t next_ = 0;
};

}  // namespace server
