// SPDX-License-Identifier: Apache-2.0
//
// The beginning of a record, by which a push sees what a server has.
#include <gtest/gtest.h>

#include <string>

#include "remote/record.h"

namespace modcache::remote {
namespace {

std::string record_bytes() {
  return encode_record({{1, 2}, {3, 4}, "key", "header", std::string(1000, 'p'), 5, 6}, Seal());
}

TEST(RecordBeginningTest, it_says_what_the_record_says) {
  const std::string bytes = record_bytes();
  const auto beginning = decode_beginning(bytes.substr(0, RecordBeginning::kSizeBytes));
  ASSERT_TRUE(beginning.has_value());
  EXPECT_TRUE((beginning->generation == Generation{1, 2}));
  EXPECT_EQ(beginning->context, (Digest128{3, 4}));
  EXPECT_EQ(beginning->run_us, 5);
  EXPECT_EQ(beginning->stored_at_us, 6);
  EXPECT_EQ(beginning->payload_size_bytes, 1000u);
  EXPECT_EQ(beginning->key_size_bytes, 3u);
  EXPECT_EQ(beginning->header_size_bytes, 6u);
  EXPECT_TRUE(decode_beginning(bytes).has_value()) << "it may go on";
}

TEST(RecordBeginningTest, nothing_else_begins_so) {
  std::string bytes = record_bytes();
  EXPECT_FALSE(decode_beginning("").has_value());
  EXPECT_FALSE(decode_beginning(bytes.substr(0, RecordBeginning::kSizeBytes - 1)).has_value());
  bytes[4] = static_cast<char>(kRecordVersion + 1);
  EXPECT_FALSE(decode_beginning(bytes).has_value());
  bytes[0] = 'x';
  EXPECT_FALSE(decode_beginning(bytes).has_value());
}

}  // namespace
}  // namespace modcache::remote
