// SPDX-License-Identifier: Apache-2.0
//
// LiveTerminal: a terminal whose whole screen a command draws again and again, and which is as it
// was once this object is gone. Signals that end a process end the waiting instead (Ctrl-C,
// SIGTERM, a terminal that was closed). One object at a time, in a process with one thread.
#pragma once

#include <termios.h>

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "command_line/output.h"

namespace modcache::command_line {

class LiveTerminal {
 public:
  // Returns whether the data goes to a terminal that can be drawn on.
  static bool is_possible(const Output& output);

  // REQUIRES: is_possible().
  explicit LiveTerminal(Output& output);
  ~LiveTerminal();
  LiveTerminal(const LiveTerminal&) = delete;
  LiveTerminal& operator=(const LiveTerminal&) = delete;

  struct Size {
    std::size_t columns = 80;
    std::size_t rows = 24;
  };
  Size size() const;

  // Shows these lines and nothing else; what does not fit into size() is left out. REQUIRES: a line
  // has nothing that a terminal obeys.
  void draw(const std::vector<std::string>& lines);

  enum class Event { kTimeout, kRedraw, kQuit };
  // Waits until the steady clock (steady_now_ms) says so. kRedraw: the size changed, or the process
  // was stopped and goes on. kQuit: somebody pressed q, or a signal came.
  Event wait_until(std::int64_t time_ms);

 private:
  void enter();
  void leave();

  Output& output_;
  const bool has_keys_;
  termios settings_before_{};
  sigset_t signals_before_{};
};

// Blocks the signals that end a process from now on, and waits for one of them until the steady
// clock says so. Returns whether one came. For commands that write line after line.
bool wait_for_signal_until(std::int64_t time_ms);

}  // namespace modcache::command_line
