// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "module/code/source.h"

namespace modcache::module {
namespace {

TEST(ClassNamesTest, lose_their_mangling_and_are_numbered_in_the_order_of_appearance) {
  NameStabilizer names;
  const std::string b = "__torch__.a.B";
  const std::string other_b = "__torch__.a.___torch_mangle_7.B";
  EXPECT_EQ(without_mangling(other_b), b);
  EXPECT_EQ(names.stabilize("x(" + other_b + ", " + b + ") " + other_b),
            "x(__torch__.a.B#0, "
            "__torch__.a.B#1) "
            "__torch__.a.B#0");
  EXPECT_EQ(names.known(b), "__torch__.a.B#1");
  EXPECT_EQ(names.known("__torch__.C"), "");
}

}  // namespace
}  // namespace modcache::module
