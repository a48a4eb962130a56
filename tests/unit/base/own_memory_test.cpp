// SPDX-License-Identifier: Apache-2.0
#include "base/own_memory.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace modcache {
namespace {

TEST(OwnMemoryTest, copies_what_is_there) {
  const std::array<std::byte, 3> from{std::byte{1}, std::byte{2}, std::byte{3}};
  std::array<std::byte, 3> to{};
  EXPECT_TRUE(copy_own_memory(from.data(), from.size(), to.data()));
  EXPECT_EQ(to, from);
}

TEST(OwnMemoryTest, says_when_it_is_not_there) {
  std::byte to{};
  EXPECT_FALSE(copy_own_memory(reinterpret_cast<const std::byte*>(std::uintptr_t{8}), 1, &to));
}

}  // namespace
}  // namespace modcache
