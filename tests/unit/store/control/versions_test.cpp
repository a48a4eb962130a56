// SPDX-License-Identifier: Apache-2.0
#include "store/control/versions.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "store/index/database.h"
#include "store/index/index.h"
#include "store/segment/record.h"
#include "support/directory_bytes.h"
#include "support/sealing.h"
#include "support/store_fixture.h"

namespace modcache::store {
namespace {

class VersionsTest : public testing::StoreTest {
 protected:
  StatusCode checked() const { return check_versions(directory()).code(); }
  Directory directory() const { return Directory(fs::posix_file_system(), directory_.path()); }
  void store_one() const {
    const auto store = testing::open_store(directory_.path());
    EXPECT_TRUE(testing::put(*store, context_, "key", "text").is_ok());
    EXPECT_TRUE(store->flush().is_ok());
  }
};

TEST_F(VersionsTest, a_directory_that_is_empty_or_of_this_version_is_fine) {
  EXPECT_EQ(checked(), StatusCode::kOk);
  store_one();
  EXPECT_EQ(checked(), StatusCode::kOk);
}

class OtherVersionsTest : public VersionsTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Differences, OtherVersionsTest, ::testing::Values(-1, 1));

TEST_P(OtherVersionsTest, a_database_is_refused_also_where_only_its_log_says_so) {
  store_one();
  auto& files = fs::posix_file_system();
  auto database = Database::open(files, directory().database_path(), Database::Mode::kWrite, 1000);
  ASSERT_TRUE(database.is_ok());
  const std::string other = "PRAGMA user_version=" + std::to_string(kUserVersion + GetParam());
  ASSERT_TRUE(database.value()->execute(other).is_ok());
  ASSERT_GT(std::filesystem::file_size(directory().wal_path()), 0u);
  EXPECT_EQ(checked(), StatusCode::kUnsupportedVersion);
  ASSERT_TRUE(database.value()->checkpoint().is_ok());
  database.value().reset();
  EXPECT_EQ(checked(), StatusCode::kUnsupportedVersion);
}

TEST_P(OtherVersionsTest, a_segment_is_refused_also_where_there_is_no_database) {
  store_one();
  const std::string path = directory().segment_path(directory().segments().value().at(0));
  std::string bytes = testing::file_bytes(path);
  bytes[9] = static_cast<char>(kSegmentFormatVersion + GetParam());
  testing::seal(bytes, 0, kSegmentHeaderSizeBytes);
  testing::write_file(path, bytes);
  EXPECT_EQ(checked(), StatusCode::kUnsupportedVersion);
  std::filesystem::remove(directory().database_path());
  std::filesystem::remove(directory().control_path());
  EXPECT_EQ(checked(), StatusCode::kUnsupportedVersion);
}

TEST_F(VersionsTest, what_is_broken_is_for_others_to_find) {
  store_one();
  testing::write_file(directory().control_path(), "no page");
  testing::write_file(directory().segment_path(directory().segments().value().at(0)), "no segment");
  testing::write_file(directory().database_path(), "no database");
  EXPECT_EQ(checked(), StatusCode::kOk);
}

}  // namespace
}  // namespace modcache::store
