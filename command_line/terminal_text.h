// SPDX-License-Identifier: Apache-2.0
//
// Text on a terminal: what of it is safe to show, and the room that it takes. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace modcache::command_line {

// Returns the text with escapes (\n, \t, \x1b, \xff) for everything that would move a terminal's
// cursor or change its colours, for invalid UTF-8, and for \ itself.
std::string printable(std::string_view text);
// Does the same for messages that contain printable() texts: keeps line ends and backslashes.
std::string printable_message(std::string_view text);

// Returns the number of columns that the text takes on a terminal. REQUIRES: UTF-8.
std::size_t columns_of(std::string_view text);
// Returns the text, with … for its middle where it takes more than `columns`; of characters that
// take two, the result may have one column less. REQUIRES: UTF-8.
std::string shortened(std::string_view text, std::size_t columns);

// Splits the text at blanks into lines of at most `columns`. A longer word is split, too, or stands
// on a line of its own, whole. Always returns a line. REQUIRES: UTF-8.
std::vector<std::string> wrapped(std::string_view text, std::size_t columns, bool splits_words);

// Returns the text with blanks before or behind it, until it takes `columns`.
std::string padded(const std::string& text, std::size_t columns, bool is_right);

// TableLayout: how wide the columns of a table are. Pure functions of widths.
struct ColumnWidth {
  std::size_t columns = 0;
  bool may_shrink = false;  // a text, whose middle may be left out
};

inline constexpr std::size_t kBetweenColumns = 2;
// A text is not shortened to less.
inline constexpr std::size_t kLeastTextColumns = 7;

// Texts of several lines have at least this width.
inline constexpr std::size_t kMinWrappedColumns = 16;

// Shrinks the widest texts until the row takes at most `most_columns`, to no less than
// `least_of_text`. Returns false, and changes nothing, when that is impossible.
bool fit(std::vector<ColumnWidth>& widths, std::size_t most_columns,
         std::size_t least_of_text = kLeastTextColumns);

}  // namespace modcache::command_line
