// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "command_line/terminal_text.h"

namespace modcache::command_line {
namespace {

using ::testing::ElementsAre;

constexpr bool kText = true;
constexpr bool kNumber = false;

// The widths of the columns after fit(); empty: it is impossible.
std::vector<std::size_t> fitted(std::vector<ColumnWidth> widths, std::size_t most_columns) {
  std::vector<std::size_t> columns;
  if (!fit(widths, most_columns)) return columns;
  for (const ColumnWidth& width : widths) columns.push_back(width.columns);
  return columns;
}

TEST(TableLayoutTest, what_has_room_stays) {
  EXPECT_THAT(fitted({{40, kText}, {8, kNumber}}, 50), ElementsAre(40, 8));
  EXPECT_THAT(fitted({}, 10), ElementsAre());
}

TEST(TableLayoutTest, the_widest_texts_shrink_and_numbers_never) {
  EXPECT_THAT(fitted({{40, kText}, {8, kNumber}}, 49), ElementsAre(39, 8));
  EXPECT_THAT(fitted({{60, kText}, {10, kText}, {8, kNumber}}, 42), ElementsAre(20, 10, 8));
  EXPECT_THAT(fitted({{60, kText}, {50, kText}, {8, kNumber}}, 43), ElementsAre(16, 15, 8));
}

TEST(TableLayoutTest, a_text_keeps_a_few_columns) {
  EXPECT_THAT(fitted({{60, kText}, {8, kNumber}}, 17), ElementsAre(7, 8));
  EXPECT_THAT(fitted({{60, kText}, {8, kNumber}}, 16), ElementsAre());
  EXPECT_THAT(fitted({{5, kText}, {60, kText}, {8, kNumber}}, 24), ElementsAre(5, 7, 8));
}

}  // namespace
}  // namespace modcache::command_line
