// SPDX-License-Identifier: Apache-2.0
//
// Keeps what the library would print, for as long as it lives.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "base/log.h"

namespace modcache::testing {

class CapturedLog {
 public:
  CapturedLog() {
    forget_logged_causes();
    set_log_sink([this](LogLevel, const std::string& message) {
      const std::lock_guard<std::mutex> lock(mutex_);
      messages_.push_back(message);
    });
  }
  ~CapturedLog() { set_log_sink({}); }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;

  // The messages that have `part` in them.
  std::vector<std::string> about(const std::string& part) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::string> found;
    for (const auto& message : messages_) {
      if (message.find(part) != std::string::npos) found.push_back(message);
    }
    return found;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> messages_;
};

}  // namespace modcache::testing
