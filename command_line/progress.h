// SPDX-License-Identifier: Apache-2.0
//
// Progress: shows how far a long command is to the person who waits for it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "command_line/output.h"
#include "command_line/units.h"

namespace modcache::command_line {

class Progress {
 public:
  explicit Progress(Output& output) : output_(output) {}
  ~Progress() { output_.end_progress(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `of_entries`: 0 where nobody knows.
  void show(std::int64_t entries, std::int64_t of_entries, std::uint64_t bytes) {
    const auto now = std::chrono::steady_clock::now();
    if (now - shown_ < std::chrono::milliseconds(200)) return;
    shown_ = now;
    const std::string of = of_entries > 0 ? " of " + count_text(of_entries) : "";
    output_.show_progress(count_text(entries) + of + " entries, " +
                          size_text(static_cast<std::int64_t>(bytes)));
  }

 private:
  Output& output_;
  std::chrono::steady_clock::time_point shown_ = std::chrono::steady_clock::now();
};

}  // namespace modcache::command_line
