// SPDX-License-Identifier: Apache-2.0
#include "cache/store_handle.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

#include "fs/posix_file_system.h"
#include "support/captured_log.h"
#include "support/directory_bytes.h"
#include "support/temporary_directory.h"

namespace modcache::cache {
namespace {

class StoreHandleTest : public ::testing::Test {
 protected:
  StoreHandleTest() { handle_.add_listener(stats_); }
  ~StoreHandleTest() override { handle_.remove_listener(stats_); }

  static Settings settings_of(const std::string& directory) {
    Settings settings;
    settings.dir = directory;
    return settings;
  }

  testing::TemporaryDirectory directory_;
  const std::string dir_ = directory_ / "cache";
  const Settings settings_ = settings_of(dir_);
  Stats stats_;
  StoreHandle handle_{settings_, fs::posix_file_system()};
};

TEST_F(StoreHandleTest, opens_at_the_first_question_and_stays_open) {
  EXPECT_EQ(handle_.get_open(), nullptr);
  EXPECT_FALSE(std::filesystem::exists(dir_));
  const StorePtr store = handle_.get(Access::kWrite);
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(handle_.get(Access::kRead), store);
  EXPECT_EQ(handle_.get_open(), store);
  handle_.close();
  EXPECT_EQ(handle_.get_open(), nullptr);
}

TEST_F(StoreHandleTest, a_reader_makes_no_directory_and_delays_no_writer) {
  EXPECT_EQ(handle_.get(Access::kRead), nullptr);
  EXPECT_FALSE(std::filesystem::exists(dir_));
  EXPECT_EQ(stats_.get(Counter::kErrors), 0);
  EXPECT_NE(handle_.get(Access::kWrite), nullptr);
}

TEST_F(StoreHandleTest, opens_anew_where_the_directory_was_removed) {
  const StorePtr before = handle_.get(Access::kWrite);
  const std::uint64_t removals = handle_.removals(Access::kRead);
  std::filesystem::remove_all(dir_);
  for (int i = 0; i < 100 && before->is_attached(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  const StorePtr after = handle_.get(Access::kWrite);
  ASSERT_NE(after, nullptr);
  EXPECT_NE(after, before);
  EXPECT_FALSE(store::are_of_one_source(handle_.removals(Access::kRead), removals));
}

TEST_F(StoreHandleTest, a_directory_that_fails_is_left_alone_and_says_its_last_count) {
  ASSERT_NE(handle_.get(Access::kWrite), nullptr);
  const std::uint64_t removals = handle_.removals(Access::kRead);
  handle_.leave_alone(Status::io_error("it stalls"));
  EXPECT_EQ(handle_.get(Access::kWrite), nullptr);
  EXPECT_EQ(handle_.removals(Access::kRead), removals);
}

TEST_F(StoreHandleTest, clearing_tries_a_directory_that_is_left_alone_once) {
  ASSERT_NE(handle_.get(Access::kWrite), nullptr);
  handle_.leave_alone(Status::io_error("it stalls"));
  std::string why_not;
  EXPECT_NE(handle_.get_to_clear(why_not), nullptr);
  handle_.leave_alone_to_clear(Status::io_error("it still stalls"));
  EXPECT_EQ(handle_.get_to_clear(why_not), nullptr);
  EXPECT_EQ(why_not, "it still stalls");
}

TEST_F(StoreHandleTest, what_cannot_be_opened_is_counted_once) {
  const testing::CapturedLog log;
  testing::write_file(directory_ / "file", "not a directory");
  const Settings settings = settings_of(directory_ / "file/cache");
  StoreHandle handle(settings, fs::posix_file_system());
  handle.add_listener(stats_);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(handle.get(Access::kWrite), nullptr);
  EXPECT_EQ(stats_.get(Counter::kErrors), 1);
  EXPECT_EQ(log.about("file/cache").size(), 1u);
  handle.remove_listener(stats_);
}

TEST_F(StoreHandleTest, caches_of_one_directory_share_it) {
  const int a = 0;
  const int b = 0;
  const auto first = StoreHandle::acquire(&a, settings_, fs::posix_file_system());
  const auto second = StoreHandle::acquire(&b, settings_, fs::posix_file_system());
  ASSERT_TRUE(first.is_ok() && second.is_ok());
  EXPECT_EQ(first.value(), second.value());
  StoreHandle::release(&a);
  StoreHandle::release(&b);
}

TEST_F(StoreHandleTest, the_second_cache_of_a_directory_has_its_budget) {
  const int a = 0;
  const int b = 0;
  ASSERT_TRUE(StoreHandle::acquire(&a, settings_, fs::posix_file_system()).is_ok());
  Settings smaller = settings_;
  smaller.disk_bytes = 1 << 20;
  const auto refused = StoreHandle::acquire(&b, smaller, fs::posix_file_system());
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument) << refused.status().message();
  StoreHandle::release(&a);
  EXPECT_TRUE(StoreHandle::acquire(&b, smaller, fs::posix_file_system()).is_ok());
  StoreHandle::release(&b);
}

}  // namespace
}  // namespace modcache::cache
