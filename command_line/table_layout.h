// SPDX-License-Identifier: Apache-2.0
//
// TableLayout: how wide the columns of a table are. Pure functions of widths.
#pragma once

#include <cstddef>
#include <vector>

namespace modcache::command_line {

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
