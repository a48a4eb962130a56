// SPDX-License-Identifier: Apache-2.0
#include "command_line/output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "command_line/terminal_text.h"

namespace modcache::command_line {
namespace {

constexpr std::size_t kUsualColumns = 80;

// Some terminals, such as a serial line, do not know their size.
std::size_t columns_of_terminal(int file) {
  winsize size{};
  if (::ioctl(file, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const char* const set = std::getenv("COLUMNS");
  const long columns = set == nullptr ? 0 : std::strtol(set, nullptr, 10);
  return columns > 0 ? static_cast<std::size_t>(columns) : kUsualColumns;
}

}  // namespace

void Output::write(std::string_view text) {
  if (is_closed() || text.empty()) return;
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), data_) != text.size()) {
    error_ = errno != 0 ? errno : EIO;
  }
}

void Output::say(std::string_view text) {
  end_progress();
  // Messages contain arguments and paths, which may hold anything.
  std::fprintf(messages_, "modcache: %s\n", printable_message(text).c_str());
}

void Output::show_progress(const std::string& text) {
  if (::isatty(::fileno(messages_)) == 0) return;
  const std::size_t columns = columns_of(text);
  const std::size_t blanks = progress_columns_ > columns ? progress_columns_ - columns : 0;
  std::fprintf(messages_, "\r%s%s", text.c_str(), std::string(blanks, ' ').c_str());
  std::fflush(messages_);
  progress_columns_ = columns;
}

void Output::end_progress() {
  if (progress_columns_ == 0) return;
  std::fprintf(messages_, "\r%s\r", std::string(progress_columns_, ' ').c_str());
  progress_columns_ = 0;
}

std::size_t Output::terminal_columns() const {
  const int file = ::fileno(data_);
  if (file < 0 || ::isatty(file) == 0) return 0;
  return columns_of_terminal(file);
}

Status Output::finish() {
  end_progress();
  if (!is_closed() && std::fflush(data_) != 0) error_ = errno != 0 ? errno : EIO;
  if (error_ == 0 || error_ == EPIPE) return Status::ok();
  return Status::io_error(std::string("the output cannot be written: ") + std::strerror(error_));
}

}  // namespace modcache::command_line
