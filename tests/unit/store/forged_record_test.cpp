// SPDX-License-Identifier: Apache-2.0
//
// Records with right checksums and false claims.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "store/segment/record.h"
#include "support/directory_bytes.h"
#include "support/sealing.h"
#include "support/store_fixture.h"

namespace modcache::store {
namespace {

using testing::open_store;
using testing::put;
using testing::segment_files;

class ForgedRecordTest : public testing::StoreTest {};

// A reader takes as much memory as the record claims.
TEST_F(ForgedRecordTest, calls_a_record_corruption_that_claims_more_than_its_file_has) {
  {
    auto store = open_store(directory_.path());
    ASSERT_TRUE(put(*store, context_, "key", "value").is_ok());
  }
  const std::string path = segment_files(directory_.path()).front();
  std::string bytes = testing::file_bytes(path);
  const std::uint64_t salt = decode_segment_header(bytes).value().salt;
  for (std::size_t at = 64; at + kRecordFixedSizeBytes <= bytes.size(); at += 64) {
    auto head = peek_record_head(std::string_view(bytes).substr(at));
    if (!head.is_ok() || head.value().kind != RecordKind::kEntry) continue;
    bytes[at + 56 + 4] = 1;  // 4 GiB more
    testing::seal_record(bytes, at, bytes.size(), salt, /*with_payload=*/false);
  }
  testing::write_file(path, bytes);
  // The shared index leads to the record, and knows no sizes.
  EXPECT_EQ(open_store(directory_.path())->find({context_, "key"}).status().code(),
            StatusCode::kCorruption);
}

}  // namespace
}  // namespace modcache::store
