// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "policy/policy.h"

namespace modcache::policy {
namespace {

TEST(KindTest, names_are_those_of_the_setting) {
  EXPECT_EQ(kind_name(Kind::kAuto), "auto");
  EXPECT_EQ(kind_name(Kind::kLru), "lru");
  EXPECT_EQ(kind_name(Kind::kS3Fifo), "s3fifo");
  EXPECT_EQ(kind_name(Kind::kKeep), "keep");
}

}  // namespace
}  // namespace modcache::policy
