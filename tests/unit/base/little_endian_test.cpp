// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "base/bytes.h"

namespace modcache {
namespace {

TEST(LittleEndianTest, puts_the_lowest_byte_first) {
  std::string bytes(4, '\0');
  write_number(std::uint32_t{0x04030201}, bytes.data());
  EXPECT_EQ(bytes, "\x01\x02\x03\x04");
  EXPECT_EQ(read_number<std::uint32_t>(bytes.data()), 0x04030201u);
}

TEST(LittleEndianTest, keeps_negative_numbers) {
  std::string bytes(8, '\0');
  write_number(std::int64_t{-2}, bytes.data());
  EXPECT_EQ(bytes, "\xfe\xff\xff\xff\xff\xff\xff\xff");
  EXPECT_EQ(read_number<std::int64_t>(bytes.data()), -2);
}

}  // namespace
}  // namespace modcache
