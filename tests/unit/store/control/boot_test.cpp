// SPDX-License-Identifier: Apache-2.0
#include "store/control/boot.h"

#include <gtest/gtest.h>

#include <string>

#include "fuzz/memory_file_system.h"

namespace modcache::store {
namespace {

// A machine whose kernel gives this boot that name.
fuzz::MemoryFileSystem machine(const std::string& boot_id) {
  return {"/proc/sys/kernel/random/boot_id", boot_id};
}

const std::string kOne = "3f1c8c3a-0b57-4d1e-9e58-0a2f6f1c2d11\n";
const std::string kOther = "3f1c8c3a-0b57-4d1e-9e58-0a2f6f1c2d12\n";

TEST(BootTest, is_told_from_every_other) {
  auto one = machine(kOne);
  auto again = machine(kOne);
  auto other = machine(kOther);
  EXPECT_EQ(boot_of_machine(one).value(), boot_of_machine(again).value());
  EXPECT_NE(boot_of_machine(one).value(), boot_of_machine(other).value());
  EXPECT_EQ(boot_number(one), boot_number(again));
  EXPECT_NE(boot_number(one), boot_number(other));
  EXPECT_NE(boot_number(one), 0u);
}

TEST(BootTest, that_has_no_name_or_no_whole_one_cannot_be_told) {
  auto short_name = machine("3f1c8c3a");
  EXPECT_FALSE(boot_of_machine(short_name).is_ok());
  EXPECT_EQ(boot_number(short_name), 0u);
  fuzz::MemoryFileSystem without("/elsewhere", kOne);
  EXPECT_FALSE(boot_of_machine(without).is_ok());
  EXPECT_EQ(boot_number(without), 0u);
}

}  // namespace
}  // namespace modcache::store
