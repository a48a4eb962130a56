// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

#include <gtest/gtest.h>

namespace modcache {
namespace {

TEST(Utf8Test, takes_what_python_reads_as_text) {
  for (const char* text : {"", "a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"}) {
    EXPECT_TRUE(is_utf8(text)) << text;
  }
}

TEST(Utf8Test, refuses_everything_else) {
  for (const char* bytes : {"\xff", "a\x80", "\xc3", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80",
                            "\xf4\x90\x80\x80", "\xf0\x9f\x98"}) {
    EXPECT_FALSE(is_utf8(bytes)) << bytes;
  }
}

TEST(Utf8Test, PathsHaveTextForm) {
  EXPECT_EQ(text_of_path("/a/caf\xc3\xa9"), "/a/caf\xc3\xa9");
  EXPECT_EQ(text_of_path("/a/\x80\xff"), "/a/\xf4\x8f\xbe\x80\xf4\x8f\xbf\xbf");
  for (const char* path : {"", "/a", "/\xc3\xa9\xe4", "\xff", "\xc3", "\x80\xbf\xc0\xff",
                           "\xf4\x8f\xbf\xbf", "\xf4\x8f\x80\x80", "\xf4\x8f"}) {
    EXPECT_TRUE(is_utf8(text_of_path(path))) << path;
    EXPECT_EQ(path_of_text(text_of_path(path)), path);
  }
}

}  // namespace
}  // namespace modcache
