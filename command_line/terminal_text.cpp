// SPDX-License-Identifier: Apache-2.0
#include "command_line/terminal_text.h"

#include <algorithm>
#include <array>
#include <clocale>
#include <cstdint>
#include <cstdio>
#include <cwchar>

namespace modcache::command_line {
namespace {

// The first character of a text, and its size in bytes; size 0: not UTF-8.
struct Character {
  std::uint32_t code = 0;
  std::size_t size = 0;
};
Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < size) return {};
  std::uint32_t code = lead & (0xffU >> (size + 1));
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0U) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3fU);
  }
  constexpr std::array<std::uint32_t, 5> kLeast{0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
  if (code < kLeast[size] || code > 0x10ffff || is_surrogate) return {};
  return {code, size};
}

struct Range {
  std::uint32_t first;
  std::uint32_t last;
};
template <std::size_t N>
bool is_in(const std::array<Range, N>& ranges, std::uint32_t code) {
  for (const Range& range : ranges) {
    if (code >= range.first && code <= range.last) return true;
  }
  return false;
}

// Where the system has no C.UTF-8: characters that terminals show in two columns, approximately
// (East Asian scripts and pictures), and in none (marks, and characters that join others).
constexpr std::array<Range, 10> kWide{{{0x1100, 0x115f},
                                       {0x2e80, 0xa4cf},
                                       {0xac00, 0xd7a3},
                                       {0xf900, 0xfaff},
                                       {0xfe30, 0xfe6f},
                                       {0xff00, 0xff60},
                                       {0xffe0, 0xffe6},
                                       {0x1f300, 0x1f64f},
                                       {0x1f900, 0x1f9ff},
                                       {0x20000, 0x3fffd}}};
constexpr std::array<Range, 4> kNarrow{
    {{0x0300, 0x036f}, {0x200b, 0x200f}, {0x20d0, 0x20ff}, {0xfe00, 0xfe0f}}};
// Control characters, and those that change the direction of the following text.
constexpr std::array<Range, 6> kUnsafe{{{0x00, 0x1f},
                                        {0x7f, 0x9f},
                                        {0x061c, 0x061c},
                                        {0x200e, 0x200f},
                                        {0x2028, 0x202e},
                                        {0x2066, 0x2069}}};

std::string escaped(unsigned char byte) {
  switch (byte) {
    case '\n': return "\\n";
    case '\r': return "\\r";
    case '\t': return "\\t";
    case '\\': return "\\\\";
    default: break;
  }
  std::array<char, 8> text{};
  std::snprintf(text.data(), text.size(), "\\x%02x", byte);
  return text.data();
}

// The locale of the environment may be another one, or have no Unicode.
int columns_by_system(std::uint32_t code) {
  static const locale_t unicode = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", locale_t{});
  if (unicode == locale_t{}) return -1;
  const locale_t before = ::uselocale(unicode);
  const int columns = ::wcwidth(static_cast<wchar_t>(code));
  ::uselocale(before);
  return columns;
}

std::size_t columns_of_character(std::uint32_t code) {
  if (code >= ' ' && code < 0x7f) return 1;
  const int columns = columns_by_system(code);
  if (columns >= 0) return static_cast<std::size_t>(columns);
  return is_in(kWide, code) ? 2 : is_in(kNarrow, code) ? 0 : 1;
}

// One character as a terminal shows it, with the marks on it.
struct Shown {
  std::size_t size_bytes = 0;
  std::size_t columns = 0;
};
Shown first_shown(std::string_view text) {
  Shown shown;
  while (shown.size_bytes < text.size()) {
    const Character character = first_character(text.substr(shown.size_bytes));
    const std::size_t columns = columns_of_character(character.code);
    if (shown.size_bytes > 0 && columns > 0) break;
    shown.columns += columns;
    shown.size_bytes += character.size == 0 ? 1 : character.size;
  }
  return shown;
}

std::string made_printable(std::string_view text, std::string_view kept,
                           std::string_view escaped_too) {
  std::string out;
  while (!text.empty()) {
    const Character character = first_character(text);
    const std::size_t size = character.size == 0 ? 1 : character.size;
    const bool is_unsafe = character.size == 0 || is_in(kUnsafe, character.code) ||
                           escaped_too.find(text.front()) != std::string_view::npos;
    if (is_unsafe && kept.find(text.front()) == std::string_view::npos) {
      for (const char c : text.substr(0, size)) out += escaped(static_cast<unsigned char>(c));
    } else {
      out += text.substr(0, size);
    }
    text.remove_prefix(size);
  }
  return out;
}

// Returns the columns of a row whose texts have at most `most_of_text`.
std::size_t columns_of_row(const std::vector<ColumnWidth>& widths, std::size_t most_of_text) {
  std::size_t columns = widths.empty() ? 0 : kBetweenColumns * (widths.size() - 1);
  for (const ColumnWidth& width : widths) {
    columns += width.may_shrink ? std::min(width.columns, most_of_text) : width.columns;
  }
  return columns;
}

}  // namespace

std::string printable(std::string_view text) { return made_printable(text, "", "\\"); }

std::string printable_message(std::string_view text) { return made_printable(text, "\n", ""); }

std::size_t columns_of(std::string_view text) {
  // Nearly all text is of this kind, and a listing measures millions.
  if (std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c < 0x7f; })) {
    return text.size();
  }
  std::size_t columns = 0;
  while (!text.empty()) {
    const Shown shown = first_shown(text);
    columns += shown.columns;
    text.remove_prefix(shown.size_bytes);
  }
  return columns;
}

std::string shortened(std::string_view text, std::size_t columns) {
  const std::size_t whole = columns_of(text);
  if (whole <= columns) return std::string(text);
  if (columns == 0) return "";
  // The end tells keys of one folder apart, so it gets as much as the beginning.
  const std::size_t of_end = (columns - 1) / 2;
  const std::size_t of_beginning = columns - 1 - of_end;
  std::size_t at = 0;
  std::size_t taken = 0;
  std::string_view rest = text;
  for (Shown shown = first_shown(rest); taken + shown.columns <= of_beginning;
       shown = first_shown(rest)) {
    taken += shown.columns;
    at += shown.size_bytes;
    rest.remove_prefix(shown.size_bytes);
  }
  for (std::size_t left = whole - taken; left > of_end;) {
    const Shown shown = first_shown(rest);
    left -= shown.columns;
    rest.remove_prefix(shown.size_bytes);
  }
  return std::string(text.substr(0, at)) + "\u2026" + std::string(rest);
}

std::vector<std::string> wrapped(std::string_view text, std::size_t columns, bool splits_words) {
  std::vector<std::string> lines(1);
  std::size_t taken = 0;  // of the last line
  const auto begin_line = [&] {
    lines.emplace_back();
    taken = 0;
  };
  while (!text.empty()) {
    const std::size_t size = std::min(text.find(' '), text.size());
    std::string_view word = text.substr(0, size);
    text.remove_prefix(std::min(size + 1, text.size()));
    if (taken > 0 && taken + 1 + columns_of(word) > columns) begin_line();
    if (taken > 0) {
      lines.back() += ' ';
      ++taken;
    }
    while (!word.empty()) {
      const Shown shown = first_shown(word);
      if (splits_words && taken > 0 && taken + shown.columns > columns) begin_line();
      lines.back() += word.substr(0, shown.size_bytes);
      taken += shown.columns;
      word.remove_prefix(shown.size_bytes);
    }
  }
  return lines;
}

std::string padded(const std::string& text, std::size_t columns, bool is_right) {
  const std::size_t taken = columns_of(text);
  const std::string blanks(columns > taken ? columns - taken : 0, ' ');
  return is_right ? blanks + text : text + blanks;
}

bool fit(std::vector<ColumnWidth>& widths, std::size_t most_columns, std::size_t least_of_text) {
  std::size_t widest = 0;
  for (const ColumnWidth& width : widths) widest = std::max(widest, width.columns);
  if (columns_of_row(widths, widest) <= most_columns) return true;
  std::size_t most_of_text = std::min(widest, most_columns);
  while (most_of_text >= least_of_text && columns_of_row(widths, most_of_text) > most_columns) {
    --most_of_text;
  }
  if (most_of_text < least_of_text) return false;
  // The first texts share what is over, a column each.
  std::size_t over = most_columns - columns_of_row(widths, most_of_text);
  for (ColumnWidth& width : widths) {
    if (!width.may_shrink || width.columns <= most_of_text) continue;
    width.columns = most_of_text + (over > 0 ? 1 : 0);
    over -= over > 0 ? 1 : 0;
  }
  return true;
}

}  // namespace modcache::command_line
