// SPDX-License-Identifier: Apache-2.0
#include "command_line/natural_order.h"

#include <algorithm>

namespace modcache::command_line {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Takes the number off that the text begins with; without zeros before it.
std::string_view take_number(std::string_view& text) {
  const auto end =
      static_cast<std::size_t>(std::find_if_not(text.begin(), text.end(), is_digit) - text.begin());
  std::string_view number = text.substr(0, end);
  text.remove_prefix(end);
  number.remove_prefix(std::min(number.find_first_not_of('0'), number.size()));
  return number;
}

}  // namespace

bool comes_before(std::string_view a, std::string_view b) {
  std::string_view rest_a = a;
  std::string_view rest_b = b;
  while (!rest_a.empty() && !rest_b.empty()) {
    if (is_digit(rest_a.front()) && is_digit(rest_b.front())) {
      const std::string_view number_a = take_number(rest_a);
      const std::string_view number_b = take_number(rest_b);
      if (number_a.size() != number_b.size()) return number_a.size() < number_b.size();
      if (const int order = number_a.compare(number_b); order != 0) return order < 0;
      continue;
    }
    const auto byte_a = static_cast<unsigned char>(rest_a.front());
    const auto byte_b = static_cast<unsigned char>(rest_b.front());
    if (byte_a != byte_b) return byte_a < byte_b;
    rest_a.remove_prefix(1);
    rest_b.remove_prefix(1);
  }
  if (rest_a.empty() != rest_b.empty()) return rest_a.empty();
  return a < b;
}

}  // namespace modcache::command_line
