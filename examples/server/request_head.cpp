// SPDX-License-Identifier: Apache-2.0
#include "request_head.h"

#include <algorithm>

#include "refusal.h"

namespace server {
namespace {

constexpr std::string_view kLineEnd = "\r\n";
constexpr std::string_view kBlanks = " \t";
constexpr std::size_t kLongestShown = 100;

[[noreturn]] void refuse(const std::string& reason) { throw Refusal(400, reason); }

bool is_control(char character) {
  const auto code = static_cast<unsigned char>(character);
  return (code < 0x20 && character != '\t') || code == 0x7f;
}

// The characters that RFC 9110 gives to names of headers.
bool is_of_name(char character) {
  return (character >= 'a' && character <= 'z') || (character >= 'A' && character <= 'Z') ||
         (character >= '0' && character <= '9') ||
         (character != '\0' &&
          std::string_view("!#$%&'*+-.^_`|~").find(character) != std::string_view::npos);
}

// `name` is in lower case.
bool is_named(std::string_view given, std::string_view name) {
  return std::equal(given.begin(), given.end(), name.begin(), name.end(), [](char a, char b) {
    return (a >= 'A' && a <= 'Z' ? static_cast<char>(a + ('a' - 'A')) : a) == b;
  });
}

std::string_view without_blanks(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

std::string shown(std::string_view text) { return std::string(text.substr(0, kLongestShown)); }

void check_value(std::string_view name, std::string_view value) {
  if (is_named(name, "content-length")) {
    const bool is_number =
        !value.empty() && std::all_of(value.begin(), value.end(),
                                      [](char digit) { return digit >= '0' && digit <= '9'; });
    if (!is_number) refuse("Content-Length is '" + shown(value) + "'; valid is a number");
  }
  // cpp-httplib does not see a header without a value.
  if (is_named(name, "transfer-encoding") && value.empty()) {
    refuse("Transfer-Encoding has no value");
  }
}

}  // namespace

bool RequestHead::add_line(std::string_view line) {
  if (line.size() < kLineEnd.size() || line.substr(line.size() - kLineEnd.size()) != kLineEnd) {
    refuse("a line of the request's head does not end with CR and LF");
  }
  const std::string_view content = line.substr(0, line.size() - kLineEnd.size());
  if (std::any_of(content.begin(), content.end(), is_control)) {
    refuse("the request's head holds a control character");
  }
  if (!content.empty() && has_request_line_) {
    const std::string_view name = content.substr(0, content.find(':'));
    if (name.empty() || name.size() == content.size() ||
        !std::all_of(name.begin(), name.end(), is_of_name)) {
      refuse("a line of the request's head is '" + shown(content) +
             "'; valid is a name, a colon right after it, and a value");
    }
    check_value(name, without_blanks(content.substr(name.size() + 1)));
    if (is_named(name, "range") || is_named(name, "if-range")) return false;
  }
  text_ += line;
  has_request_line_ = true;
  return content.empty();
}

void RequestHead::clear() {
  text_.clear();
  has_request_line_ = false;
}

}  // namespace server
