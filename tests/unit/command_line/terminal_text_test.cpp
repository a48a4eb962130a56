// SPDX-License-Identifier: Apache-2.0
#include "command_line/terminal_text.h"

#include <gtest/gtest.h>

#include <string>

namespace modcache::command_line {
namespace {

TEST(TerminalTextTest, what_would_move_a_terminals_cursor_is_escaped) {
  EXPECT_EQ(printable("plain, caf\xc3\xa9 \xe7\x94\xbb"), "plain, caf\xc3\xa9 \xe7\x94\xbb");
  EXPECT_EQ(printable("a\nb\tc\rd\\e"), "a\\nb\\tc\\rd\\\\e");
  EXPECT_EQ(printable("\x1b[31m"), "\\x1b[31m");
  EXPECT_EQ(printable(std::string("\0\x7f", 2)), "\\x00\\x7f");
  EXPECT_EQ(printable("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(printable("\xe2\x80\xae"), "\\xe2\\x80\\xae") << "turns the direction of what follows";
  EXPECT_EQ(printable("\xc2\x9b"), "\\xc2\\x9b") << "begins a command";
}

TEST(TerminalTextTest, a_message_keeps_its_lines_and_backslashes) {
  EXPECT_EQ(printable_message("a\nb\\n"), "a\nb\\n");
  EXPECT_EQ(printable_message("\x1b[31m\xc2\x9b\xe2\x80\xa8"),
            "\\x1b[31m\\xc2\\x9b\\xe2\\x80\\xa8");
}

TEST(TerminalTextTest, columns_are_what_a_terminal_shows) {
  EXPECT_EQ(columns_of("abc"), 3U);
  EXPECT_EQ(columns_of("caf\xc3\xa9"), 4U);
  EXPECT_EQ(columns_of("cafe\xcc\x81"), 4U) << "a mark over the letter before";
  EXPECT_EQ(columns_of("\xe7\x94\xbb\xe5\x83\x8f"), 4U) << "two wide characters";
}

TEST(TerminalTextTest, marks_and_pictures_have_the_width_that_terminals_give_them) {
  EXPECT_EQ(columns_of("\xf0\x9f\x9a\x80"), 2U) << "a rocket";
  EXPECT_EQ(columns_of("\xe0\xb8\x81\xe0\xb8\xb4"), 1U) << "a Thai vowel over its letter";
  EXPECT_EQ(columns_of("\xe2\x80\xa6"), 1U);
}

TEST(TerminalTextTest, a_text_is_shortened_in_its_middle) {
  EXPECT_EQ(shortened("abcdefgh", 8), "abcdefgh");
  EXPECT_EQ(shortened("abcdefgh", 7),
            "abc\xe2\x80\xa6"
            "fgh");
  EXPECT_EQ(shortened("abcdefgh", 4), "ab\xe2\x80\xa6h");
  EXPECT_EQ(shortened("abcdefgh", 1), "\xe2\x80\xa6");
  EXPECT_EQ(shortened("abcdefgh", 0), "");
}

TEST(TerminalTextTest, no_character_is_cut_and_no_mark_loses_its_letter) {
  const std::string wide = "\xe7\x94\xbb\xe5\x83\x8f\xe7\x94\xbb\xe5\x83\x8f";  // 8 columns
  for (std::size_t columns = 0; columns <= 8; ++columns) {
    const std::string text = shortened(wide, columns);
    EXPECT_LE(columns_of(text), columns);
    EXPECT_GE(columns_of(text) + 2, columns);
  }
  EXPECT_EQ(shortened("e\xcc\x81"
                      "bcde\xcc\x81",
                      3),
            "e\xcc\x81\xe2\x80\xa6"
            "e\xcc\x81");
}

TEST(TerminalTextTest, blanks_fill_up_columns_and_not_bytes) {
  EXPECT_EQ(padded("caf\xc3\xa9", 6, false), "caf\xc3\xa9  ");
  EXPECT_EQ(padded("\xe7\x94\xbb", 3, true), " \xe7\x94\xbb");
  EXPECT_EQ(padded("long", 2, true), "long");
}

}  // namespace
}  // namespace modcache::command_line
