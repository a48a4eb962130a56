// SPDX-License-Identifier: Apache-2.0
#include "store/segment/retired_segments.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "fs/posix_file_system.h"
#include "support/temporary_directory.h"

namespace modcache::store {
namespace {

class RetiredSegmentsTest : public ::testing::Test {
 protected:
  RetiredSegmentsTest() { std::filesystem::create_directory(directory_.segments_path()); }
  void make_segment(std::uint64_t id, std::size_t size_bytes) const {
    std::ofstream(directory_.segment_path(id)) << std::string(size_bytes, 'x');
  }
  bool is_there(const std::string& path) const { return std::filesystem::exists(path); }

  const testing::TemporaryDirectory folder_;
  const Directory directory_{fs::posix_file_system(), folder_.path()};
};

TEST_F(RetiredSegmentsTest, is_renamed_and_then_unlinked_when_nobody_reads_it) {
  make_segment(1, 100);
  make_segment(2, 10);
  ASSERT_TRUE(retire_segment(directory_, 1).is_ok());
  EXPECT_FALSE(is_there(directory_.segment_path(1)));
  EXPECT_TRUE(is_there(directory_.retired_path(1)));
  const RetiredSegments retired = remove_retired(directory_).value();
  EXPECT_EQ(retired.freed_bytes, 100u);
  EXPECT_EQ(retired.held_bytes, 0u);
  EXPECT_FALSE(is_there(directory_.retired_path(1)));
  EXPECT_TRUE(is_there(directory_.segment_path(2)));
}

TEST_F(RetiredSegmentsTest, stays_and_counts_while_somebody_reads_it) {
  make_segment(1, 100);
  auto reader = fs::posix_file_system().open(directory_.segment_path(1), fs::OpenMode::kRead);
  ASSERT_TRUE(reader.value()->try_hold(fs::File::Hold::kShared).value());
  ASSERT_TRUE(retire_segment(directory_, 1).is_ok());
  const RetiredSegments retired = remove_retired(directory_).value();
  EXPECT_EQ(retired.freed_bytes, 0u);
  EXPECT_EQ(retired.held_bytes, 100u);
  EXPECT_EQ(retired.leaving_bytes, 100u) << "it was retired just now";
  EXPECT_TRUE(is_there(directory_.retired_path(1)));
  reader.value().reset();
  EXPECT_EQ(remove_retired(directory_).value().freed_bytes, 100u);
}

TEST_F(RetiredSegmentsTest, that_is_not_there_cannot_be_retired) {
  EXPECT_TRUE(retire_segment(directory_, 7).is_not_found());
  EXPECT_EQ(remove_retired(directory_).value().freed_bytes, 0u);
}

}  // namespace
}  // namespace modcache::store
