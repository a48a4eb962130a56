// SPDX-License-Identifier: Apache-2.0
#include "base/one_or_many.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

namespace modcache {
namespace {

TEST(OneOrManyTest, holds_none_one_or_many) {
  EXPECT_TRUE(OneOrMany<std::string>().empty());
  for (const std::size_t size : {1, 2, 300}) {
    OneOrMany<std::string> texts(size);
    ASSERT_EQ(texts.size(), size);
    texts[size - 1] = "last";
    const std::span<const std::string> span = texts;
    EXPECT_EQ(span.size(), size);
    EXPECT_EQ(span[size - 1], "last");
  }
}

TEST(OneOrManyTest, moves_what_it_holds) {
  for (const std::size_t size : {1, 2}) {
    OneOrMany<std::unique_ptr<int>> one(size);
    one[size - 1] = std::make_unique<int>(7);
    const OneOrMany<std::unique_ptr<int>> other = std::move(one);
    EXPECT_EQ(*other[size - 1], 7);
  }
}

}  // namespace
}  // namespace modcache
