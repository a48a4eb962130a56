// SPDX-License-Identifier: Apache-2.0
#include "store/entry/own_part.h"

#include <gtest/gtest.h>

#include <string>

namespace modcache::store {
namespace {

TEST(OwnPartTest, a_header_is_split_into_what_it_was_made_of) {
  for (std::size_t size = 1; size <= kMostOwnBytes; ++size) {
    const std::string own(size, 'o');
    const std::string header = own_part_of(own) + "shared";
    const HeaderParts parts = split_header(header);
    EXPECT_EQ(parts.own(), own);
    EXPECT_EQ(parts.shared, "shared");
    EXPECT_EQ(std::string(parts.own_part) + std::string(parts.shared), header);
  }
}

TEST(OwnPartTest, a_header_without_one_is_shared_as_a_whole) {
  EXPECT_EQ(own_part_of(""), "");
  for (const std::string& header :
       {std::string(), std::string("abc"), std::string("\x05\x00\x00\x00hello", 9)}) {
    EXPECT_EQ(split_header(header).own_part, "");
    EXPECT_EQ(split_header(header).shared, header);
  }
}

TEST(OwnPartTest, one_that_cannot_be_is_shared) {
  const std::string cut = own_part_of("0123456789").substr(0, 10);
  EXPECT_EQ(split_header(cut).shared, cut);
  const std::string large = std::string("\x3c\x00\x00\x80", 4) + std::string(60, 'x');
  EXPECT_EQ(split_header(large).shared, large);
}

}  // namespace
}  // namespace modcache::store
