// SPDX-License-Identifier: Apache-2.0
#include "request_head.h"

#include <algorithm>
#include <array>

#include "refusal.h"

namespace server {
namespace {

constexpr std::string_view kLineEnd = "\r\n";
constexpr std::string_view kBlanks = " \t";
constexpr std::size_t kLongestShown = 100;

[[noreturn]] void refuse(const std::string& reason) { throw Refusal(400, reason); }

// The characters that RFC 9110 gives to names of headers.
constexpr std::array<bool, 256> characters_of_names() {
  std::array<bool, 256> found{};
  for (const char* each = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"; *each != 0;
       ++each) {
    found[static_cast<unsigned char>(*each)] = true;
    if (*each >= 'a' && *each <= 'z') found[static_cast<unsigned char>(*each - ('a' - 'A'))] = true;
  }
  return found;
}
constexpr std::array<bool, 256> kOfNames = characters_of_names();

bool is_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char character) {
    return kOfNames[static_cast<unsigned char>(character)];
  });
}

// This does not stop at the first, so that the compiler takes many characters at once.
bool has_control(std::string_view text) {
  unsigned found = 0;
  for (const char character : text) {
    const auto code = static_cast<unsigned char>(character);
    found |= static_cast<unsigned>(code < 0x20) & static_cast<unsigned>(code != '\t');
    found |= static_cast<unsigned>(code == 0x7f);
  }
  return found != 0;
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
  if (has_control(content)) {
    refuse("the request's head holds a control character");
  }
  if (!content.empty() && has_request_line_) {
    const std::string_view name = content.substr(0, content.find(':'));
    if (name.size() == content.size() || !is_name(name)) {
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
