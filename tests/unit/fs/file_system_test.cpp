// SPDX-License-Identifier: Apache-2.0
#include "fs/file_system.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "fs/posix_file_system.h"
#include "support/temporary_directory.h"

namespace modcache::fs {
namespace {

using ::testing::HasSubstr;

FileInfo regular() {
  FileInfo info;
  info.is_regular = true;
  info.link_count = 1;
  return info;
}

TEST(CheckFileTest, only_a_regular_file_is_read_and_the_message_says_what_stands_there) {
  EXPECT_TRUE(check_is_file("/a", regular()).is_ok());
  FileInfo pipe;
  pipe.kind = "named pipe (FIFO)";
  const Status status = check_is_file("/a/b", pipe);
  EXPECT_EQ(status.code(), StatusCode::kForeign);
  EXPECT_THAT(status.message(), HasSubstr("'/a/b' is a named pipe (FIFO)"));
  EXPECT_EQ(check_is_own_file("/a/b", pipe).code(), StatusCode::kForeign);
}

TEST(CheckFileTest, a_file_of_other_names_or_another_user_is_not_written) {
  EXPECT_TRUE(check_is_own_file("/a", regular()).is_ok());
  FileInfo unlinked = regular();
  unlinked.link_count = 0;
  EXPECT_TRUE(check_is_own_file("/a", unlinked).is_ok());
  FileInfo linked = regular();
  linked.link_count = 2;
  EXPECT_EQ(check_is_own_file("/a", linked).code(), StatusCode::kForeign);
  EXPECT_TRUE(check_is_file("/a", linked).is_ok()) << "but read";
  FileInfo of_another = regular();
  of_another.owner = ::geteuid() + 1;
  EXPECT_EQ(check_is_own_file("/a", of_another).code(), StatusCode::kForeign);
}

class LockWithinTest : public ::testing::Test {
 protected:
  std::unique_ptr<File> open() const {
    return posix_file_system().open(directory_ / "lock", OpenMode::kReadWriteCreate).value();
  }
  const testing::TemporaryDirectory directory_;
};

TEST_F(LockWithinTest, takes_a_free_lock_at_once) {
  const auto file = open();
  EXPECT_TRUE(lock_within(*file, 0).is_ok());
  EXPECT_FALSE(open()->try_lock().value());
}

TEST_F(LockWithinTest, is_busy_after_its_patience_and_names_the_file) {
  const auto holder = open();
  ASSERT_TRUE(holder->try_lock().value());
  const auto started = std::chrono::steady_clock::now();
  const Status status = lock_within(*open(), 30);
  EXPECT_EQ(status.code(), StatusCode::kBusy);
  EXPECT_THAT(status.message(), HasSubstr(directory_ / "lock"));
  EXPECT_GE(std::chrono::steady_clock::now() - started, std::chrono::milliseconds(30));
}

TEST_F(LockWithinTest, waits_for_a_lock_that_becomes_free) {
  const auto holder = open();
  ASSERT_TRUE(holder->try_lock().value());
  std::thread gives_it_up([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    holder->unlock();
  });
  EXPECT_TRUE(lock_within(*open(), 60'000).is_ok());
  gives_it_up.join();
}

}  // namespace
}  // namespace modcache::fs
