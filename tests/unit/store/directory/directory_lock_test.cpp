// SPDX-License-Identifier: Apache-2.0
#include "store/directory/directory_lock.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>

#include "fs/posix_file_system.h"
#include "support/temporary_directory.h"

namespace modcache::store {
namespace {

class DirectoryLockTest : public ::testing::Test {
 protected:
  std::unique_ptr<fs::File> open() const {
    return fs::posix_file_system()
        .open(directory_ / "lock", fs::OpenMode::kReadWriteCreate)
        .value();
  }
  bool is_free() const {
    const auto other = open();
    return DirectoryLock::take(*other, 0).is_ok();
  }
  const testing::TemporaryDirectory directory_;
  const std::unique_ptr<fs::File> file_ = open();
};

TEST_F(DirectoryLockTest, is_held_until_it_goes) {
  EXPECT_TRUE(is_free());
  {
    const auto lock = DirectoryLock::take(*file_, 0);
    ASSERT_TRUE(lock.is_ok());
    EXPECT_FALSE(is_free());
    const auto other = open();
    EXPECT_EQ(DirectoryLock::take(*other, 1).status().code(), StatusCode::kBusy);
  }
  EXPECT_TRUE(is_free());
}

TEST_F(DirectoryLockTest, goes_with_the_one_that_it_was_moved_to) {
  std::optional<DirectoryLock> moved;
  {
    auto lock = DirectoryLock::take(*file_, 0);
    moved.emplace(std::move(lock).value());
  }
  EXPECT_FALSE(is_free());
  moved.reset();
  EXPECT_TRUE(is_free());
}

}  // namespace
}  // namespace modcache::store
