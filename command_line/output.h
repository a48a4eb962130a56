// SPDX-License-Identifier: Apache-2.0
//
// Output: the destination of a command's text. Data alone goes to standard output, messages for
// people to standard error. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

#include "base/status.h"

namespace modcache::command_line {

class Output {
 public:
  Output(std::FILE* data, std::FILE* messages) : data_(data), messages_(messages) {}

  void write(std::string_view text);
  // Writes "modcache: <text>" on a line of its own, or on several of a terminal.
  void say(std::string_view text);
  // Writes a line that the next one replaces and that end_progress() removes. Does nothing when
  // standard error is not a terminal.
  void show_progress(const std::string& text);
  void end_progress();

  // Hands over what was written so far, for who watches.
  void flush();
  // Returns the width of the terminal that shows the data; 0: it goes elsewhere, as into a file.
  std::size_t terminal_columns() const;

  // Returns whether nobody reads the data any more, or it cannot be written; the rest need not be
  // made.
  bool is_closed() const { return error_ != 0; }
  // Returns once everything is written. A reader that stopped early, as in `modcache ls | head`, is
  // not an error.
  Status finish();

 private:
  std::FILE* data_;
  std::FILE* messages_;
  int error_ = 0;
  std::size_t progress_columns_ = 0;
};

}  // namespace modcache::command_line
