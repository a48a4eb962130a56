// SPDX-License-Identifier: Apache-2.0
#include "module/code_text.h"

#include <gtest/gtest.h>

namespace modcache::module {
namespace {

TEST(CodeTextTest, locals_are_numbered_as_they_appear) {
  EXPECT_EQ(with_numbered_locals("modcache_local_7 = f(_0, x)\n_0 = modcache_local_7"),
            "%0 = f(%1, x)\n%1 = %0");
}

TEST(CodeTextTest, members_literals_and_other_names_stay) {
  for (const char* text :
       {"self._0.modcache_local_1", "\"_0 \\\" _1\"", "'_0'", "_x", "__0", "x_0", "_", "1_0"}) {
    EXPECT_EQ(with_numbered_locals(text), text);
  }
}

TEST(CodeTextTest, a_literal_without_an_end_is_taken_to_the_end) {
  EXPECT_EQ(with_numbered_locals("\"_0"), "\"_0");
  EXPECT_EQ(with_numbered_locals("\"_0\\"), "\"_0\\");
}

}  // namespace
}  // namespace modcache::module
