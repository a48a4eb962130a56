// SPDX-License-Identifier: Apache-2.0
#include "base/bytes.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace modcache {
namespace {

TEST(SharedBytesTest, live_as_long_as_any_copy) {
  SharedBytes copy;
  {
    const SharedBytes first = share_bytes(std::string("with\0zero", 9));
    copy = first;
    EXPECT_EQ(copy.data, first.data) << "shared, not copied";
  }
  EXPECT_EQ(copy.size_bytes, 9u);
  EXPECT_EQ(copy.view(), std::string_view("with\0zero", 9));
  EXPECT_EQ(copy.owner.use_count(), 1);
}

TEST(SharedBytesTest, may_be_none) { EXPECT_TRUE(SharedBytes().view().empty()); }

}  // namespace
}  // namespace modcache
