// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "policy/policy.h"

namespace modcache::policy {
namespace {

TEST(KindTest, names_are_those_of_the_setting) {
  for (const Kind kind : {Kind::kAuto, Kind::kLru, Kind::kS3Fifo, Kind::kKeep}) {
    EXPECT_EQ(parse_kind(kind_name(kind)), kind);
  }
  EXPECT_EQ(kind_name(Kind::kAuto), "auto");
  EXPECT_EQ(kind_name(Kind::kLru), "lru");
  EXPECT_EQ(kind_name(Kind::kS3Fifo), "s3fifo");
  EXPECT_EQ(kind_name(Kind::kKeep), "keep");
  for (const char* text : {"", "LRU", "lru ", "fifo"}) EXPECT_EQ(parse_kind(text), std::nullopt);
}

}  // namespace
}  // namespace modcache::policy
