// SPDX-License-Identifier: Apache-2.0
//
// Output: where a command writes. Data goes to standard output and nothing else does; messages for
// people go to standard error. Not thread-safe.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include "base/status.h"

namespace modcache::command_line {

class Output {
 public:
  Output(std::FILE* data, std::FILE* messages) : data_(data), messages_(messages) {}

  void write(std::string_view text);
  // "modcache: <text>", on a line of its own.
  void say(std::string_view text);
  // A line that the next one replaces, and that finish() removes; nothing where no person looks.
  void show_progress(const std::string& text);
  void end_progress();

  // Nobody reads the data any more, or it cannot be written: the rest need not be made.
  bool is_closed() const { return error_ != 0; }
  // All of it is written. A reader who had enough, as in `modcache ls | head`, is no failure.
  Status finish();

 private:
  std::FILE* data_;
  std::FILE* messages_;
  int error_ = 0;
  std::size_t progress_columns_ = 0;
};

}  // namespace modcache::command_line
