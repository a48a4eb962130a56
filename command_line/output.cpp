// SPDX-License-Identifier: Apache-2.0
#include "command_line/output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "command_line/terminal_text.h"

namespace modcache::command_line {
namespace {

constexpr std::size_t kUsualColumns = 80;

// Some terminals, such as a serial line, do not know their size.
std::size_t size_or_default(std::size_t known, const char* variable, std::size_t otherwise) {
  if (known > 0) return known;
  const char* const set = std::getenv(variable);
  const long size = set == nullptr ? 0 : std::strtol(set, nullptr, 10);
  return size > 0 ? static_cast<std::size_t>(size) : otherwise;
}

// Returns nothing unless the file is a terminal.
std::optional<winsize> size_of_terminal(std::FILE* stream) {
  const int file = ::fileno(stream);
  if (file < 0 || ::isatty(file) == 0) return std::nullopt;
  winsize size{};
  if (::ioctl(file, TIOCGWINSZ, &size) != 0) size = {};
  return size;
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
  const std::string message = "modcache: " + printable_message(text);
  const auto terminal = size_of_terminal(messages_);
  if (!terminal) {
    std::fprintf(messages_, "%s\n", message.c_str());
    return;
  }
  const std::size_t columns = size_or_default(terminal->ws_col, "COLUMNS", kUsualColumns);
  std::size_t begin = 0;
  while (begin <= message.size()) {
    const std::size_t end = std::min(message.find('\n', begin), message.size());
    for (const auto& line : wrapped(message.substr(begin, end - begin), columns, false)) {
      std::fprintf(messages_, "%s\n", line.c_str());
    }
    begin = end + 1;
  }
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

void Output::flush() {
  if (!is_closed() && std::fflush(data_) != 0) error_ = errno != 0 ? errno : EIO;
}

std::size_t Output::terminal_columns() const {
  const auto size = size_of_terminal(data_);
  return size ? size_or_default(size->ws_col, "COLUMNS", kUsualColumns) : 0;
}

Status Output::finish() {
  end_progress();
  flush();
  if (error_ == 0 || error_ == EPIPE) return Status::ok();
  return Status::io_error(std::string("the output cannot be written: ") + std::strerror(error_));
}

}  // namespace modcache::command_line
