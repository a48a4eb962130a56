// SPDX-License-Identifier: Apache-2.0
#include "store/index/wal_peek.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "fs/posix_file_system.h"
#include "store/index/database.h"
#include "support/directory_bytes.h"
#include "support/temporary_directory.h"

namespace modcache::store {
namespace {

class WalPeekTest : public ::testing::Test {
 protected:
  WalPeekTest() {
    auto created = Database::open(files_, path_, Database::Mode::kCreate, 1000);
    EXPECT_TRUE(created.value()->execute("CREATE TABLE t(n)").is_ok());
    created.value().reset();
    database_ = Database::open(files_, path_, Database::Mode::kWrite, 1000).value();
    EXPECT_TRUE(database_->execute("PRAGMA journal_mode=WAL").is_ok());
  }
  void set_version(int version) const {
    ASSERT_TRUE(database_->execute("PRAGMA user_version=" + std::to_string(version)).is_ok());
  }
  std::optional<std::int64_t> version() const { return peek_user_version_in_wal(files_, wal_); }

  fs::FileSystem& files_ = fs::posix_file_system();
  const testing::TemporaryDirectory folder_;
  const Directory directory_{files_, folder_.path()};
  const std::string path_ = directory_.database_path();
  const std::string wal_ = directory_.wal_path();
  std::unique_ptr<Database> database_;
};

TEST_F(WalPeekTest, finds_the_greatest_version_that_the_log_says) {
  set_version(7);
  set_version(5);
  EXPECT_EQ(version(), 7);
}

TEST_F(WalPeekTest, finds_none_where_there_is_no_log_or_no_first_page_in_it) {
  ASSERT_TRUE(database_->checkpoint().is_ok());
  ASSERT_TRUE(database_->execute("INSERT INTO t VALUES(1)").is_ok());
  EXPECT_EQ(peek_user_version_in_wal(files_, path_), std::nullopt) << "a database is no log";
  EXPECT_EQ(peek_user_version_in_wal(files_, folder_ / "none"), std::nullopt);
}

TEST_F(WalPeekTest, a_log_is_read_that_has_a_whole_header_and_something_behind_it) {
  set_version(7);
  EXPECT_TRUE(is_wal_read(files_, wal_));
  const std::string copy = folder_ / "copy";
  std::filesystem::copy_file(wal_, copy);
  testing::flip_bit(copy, 20);
  EXPECT_FALSE(is_wal_read(files_, copy)) << "its header is damaged";
  std::filesystem::resize_file(wal_, 32);
  EXPECT_FALSE(is_wal_read(files_, wal_)) << "it ends with its header";
  EXPECT_FALSE(is_wal_read(files_, folder_ / "none"));
}

TEST_F(WalPeekTest, a_log_is_live_beside_the_memory_that_goes_with_it) {
  set_version(7);
  const LogLook live = look_at_log(directory_, 0);
  EXPECT_EQ(live.size_bytes, std::filesystem::file_size(wal_));
  EXPECT_TRUE(live.is_read);
  EXPECT_TRUE(live.is_live);
  std::filesystem::rename(directory_.shared_memory_path(), folder_ / "aside");
  EXPECT_FALSE(look_at_log(directory_, 0).is_live);
  std::filesystem::remove(wal_);
  EXPECT_FALSE(look_at_log(directory_, 0).is_read);
}

}  // namespace
}  // namespace modcache::store
