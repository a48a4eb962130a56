// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

#include <cstddef>

namespace modcache {
namespace {

// The first two bytes of U+10FF80 to U+10FFFF. Other characters that begin so, from U+10F000, are
// escaped, too.
constexpr std::string_view kEscapeLead = "\xf4\x8f";

// Returns the length of the multi-byte UTF-8 sequence that starts with `lead`; 0 when none does.
std::size_t sequence_length(unsigned char lead) {
  if (lead >= 0xc2 && lead <= 0xdf) return 2;
  if (lead >= 0xe0 && lead <= 0xef) return 3;
  if (lead >= 0xf0 && lead <= 0xf4) return 4;
  return 0;
}

}  // namespace

bool is_utf8(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const std::size_t length = sequence_length(lead);
    if (length == 0 || i + length > text.size()) return false;
    for (std::size_t k = 1; k < length; ++k) {
      if ((static_cast<unsigned char>(text[i + k]) & 0xc0) != 0x80) return false;
    }
    const auto second = static_cast<unsigned char>(text[i + 1]);
    // Reject overlong forms, surrogates, and code points beyond U+10FFFF.
    if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) ||
        (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f)) {
      return false;
    }
    i += length;
  }
  return true;
}

std::string text_of_path(std::string_view path) {
  if (is_utf8(path) && path.find(kEscapeLead) == std::string_view::npos) return std::string(path);
  std::string text;
  while (!path.empty()) {
    const auto lead = static_cast<unsigned char>(path.front());
    const std::size_t length = lead < 0x80 ? 1 : sequence_length(lead);
    const std::string_view character = path.substr(0, length);
    const bool is_text = length > 0 && character.size() == length && is_utf8(character) &&
                         character.substr(0, 2) != kEscapeLead;
    if (is_text) {
      text += character;
      path.remove_prefix(length);
    } else {
      text += kEscapeLead;
      text += static_cast<char>(lead < 0xc0 ? 0xbe : 0xbf);
      text += static_cast<char>(lead < 0xc0 ? lead : lead - 0x40);
      path.remove_prefix(1);
    }
  }
  return text;
}

std::string path_of_text(std::string_view text) {
  std::string path;
  while (!text.empty()) {
    const auto third = static_cast<unsigned char>(text.size() >= 4 ? text[2] : 0);
    if (text.substr(0, 2) == kEscapeLead && (third == 0xbe || third == 0xbf)) {
      const auto last = static_cast<unsigned char>(text[3]);
      path += static_cast<char>(third == 0xbe ? last : last + 0x40);
      text.remove_prefix(4);
    } else {
      path += text.front();
      text.remove_prefix(1);
    }
  }
  return path;
}

}  // namespace modcache
