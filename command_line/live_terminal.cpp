// SPDX-License-Identifier: Apache-2.0
#include "command_line/live_terminal.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string_view>

#include "base/clock.h"
#include "command_line/terminal_text.h"

namespace modcache::command_line {
namespace {

// Another screen without a cursor, so that what the person had on theirs comes back.
constexpr char kEnter[] = "\x1b[?1049h\x1b[?25l";
constexpr char kLeave[] = "\x1b[?25h\x1b[?1049l";
constexpr char kFromTop[] = "\x1b[H";
constexpr char kClearRestOfLine[] = "\x1b[K";
constexpr char kClearBelow[] = "\x1b[J";

constexpr std::array<int, 3> kEnding{SIGINT, SIGTERM, SIGHUP};
constexpr std::array<int, 2> kRedrawing{SIGWINCH, SIGCONT};

volatile std::sig_atomic_t is_ended = 0;
volatile std::sig_atomic_t is_redrawn = 0;

void note_end(int) { is_ended = 1; }
void note_redraw(int) { is_redrawn = 1; }

// Signals are blocked but while ppoll waits, so that none comes between a look at these flags and
// the waiting.
void catch_signals(sigset_t& before) {
  sigset_t caught;
  ::sigemptyset(&caught);
  const auto take = [&caught](int signal, void (*handler)(int)) {
    struct sigaction action {};
    action.sa_handler = handler;
    ::sigaction(signal, &action, nullptr);
    ::sigaddset(&caught, signal);
  };
  for (const int signal : kEnding) take(signal, note_end);
  for (const int signal : kRedrawing) take(signal, note_redraw);
  ::sigprocmask(SIG_BLOCK, &caught, &before);
}

sigset_t without_blocking() {
  sigset_t mask;
  ::sigprocmask(SIG_BLOCK, nullptr, &mask);
  for (const int signal : kEnding) ::sigdelset(&mask, signal);
  for (const int signal : kRedrawing) ::sigdelset(&mask, signal);
  return mask;
}

// Waits until the time has come, a signal came, or `file` has something to read (-1: no file).
bool is_readable_before(std::int64_t time_ms, int file) {
  const std::int64_t wait_ms = std::max<std::int64_t>(0, time_ms - steady_now_ms());
  const timespec patience{static_cast<std::time_t>(wait_ms / 1000), (wait_ms % 1000) * 1'000'000};
  pollfd asked{file, POLLIN, 0};
  const sigset_t mask = without_blocking();
  return ::ppoll(&asked, file < 0 ? 0 : 1, &patience, &mask) > 0;
}

}  // namespace

bool LiveTerminal::is_possible(const Output& output) {
  const char* const terminal = std::getenv("TERM");
  const bool is_dumb = terminal != nullptr && std::string_view(terminal) == "dumb";
  return output.terminal_columns() > 0 && !is_dumb;
}

LiveTerminal::LiveTerminal(Output& output)
    : output_(output), has_keys_(::isatty(STDIN_FILENO) != 0) {
  catch_signals(signals_before_);
  if (has_keys_) {
    // Keys in a buffer would not wake ppoll.
    std::setvbuf(stdin, nullptr, _IONBF, 0);
    ::tcgetattr(STDIN_FILENO, &settings_before_);
  }
  enter();
}

LiveTerminal::~LiveTerminal() {
  leave();
  ::sigprocmask(SIG_SETMASK, &signals_before_, nullptr);
}

void LiveTerminal::enter() {
  if (has_keys_) {
    termios settings = settings_before_;
    settings.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    // A stopped process would leave the terminal as it is now.
    settings.c_cc[VSUSP] = _POSIX_VDISABLE;
    settings.c_cc[VMIN] = 0;
    settings.c_cc[VTIME] = 0;
    ::tcsetattr(STDIN_FILENO, TCSANOW, &settings);
  }
  output_.write(kEnter);
}

void LiveTerminal::leave() {
  output_.write(kLeave);
  output_.flush();
  if (has_keys_) ::tcsetattr(STDIN_FILENO, TCSAFLUSH, &settings_before_);
}

LiveTerminal::Size LiveTerminal::size() const {
  return {output_.terminal_columns(), output_.terminal_rows()};
}

void LiveTerminal::draw(const std::vector<std::string>& lines) {
  const Size now = size();
  output_.write(kFromTop);
  for (std::size_t i = 0; i < lines.size() && i < now.rows; ++i) {
    if (i > 0) output_.write("\r\n");
    output_.write(shortened(lines[i], now.columns));
    // In the last column this would clear the last character.
    if (columns_of(lines[i]) < now.columns) output_.write(kClearRestOfLine);
  }
  if (lines.size() < now.rows) output_.write(std::string("\r\n") + kClearBelow);
  output_.flush();
}

LiveTerminal::Event LiveTerminal::wait_until(std::int64_t time_ms) {
  while (true) {
    if (is_ended != 0 || output_.is_closed()) return Event::kQuit;
    if (is_redrawn != 0) {
      is_redrawn = 0;
      enter();
      return Event::kRedraw;
    }
    const bool is_readable = is_readable_before(time_ms, has_keys_ ? STDIN_FILENO : -1);
    if (is_readable) {
      const int key = std::getc(stdin);
      // A terminal that was closed has an end.
      if (key == EOF || key == 'q' || key == 'Q') return Event::kQuit;
    } else if (is_ended == 0 && is_redrawn == 0 && steady_now_ms() >= time_ms) {
      return Event::kTimeout;
    }
  }
}

bool wait_for_signal_until(std::int64_t time_ms) {
  sigset_t before;
  catch_signals(before);
  while (is_ended == 0 && steady_now_ms() < time_ms) is_readable_before(time_ms, -1);
  return is_ended != 0;
}

}  // namespace modcache::command_line
