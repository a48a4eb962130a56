// SPDX-License-Identifier: Apache-2.0
#include "command_line/table_layout.h"

#include <algorithm>

namespace modcache::command_line {
namespace {

// Returns the columns of a row whose texts have at most `most_of_text`.
std::size_t columns_of_row(const std::vector<ColumnWidth>& widths, std::size_t most_of_text) {
  std::size_t columns = widths.empty() ? 0 : kBetweenColumns * (widths.size() - 1);
  for (const ColumnWidth& width : widths) {
    columns += width.may_shrink ? std::min(width.columns, most_of_text) : width.columns;
  }
  return columns;
}

}  // namespace

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
