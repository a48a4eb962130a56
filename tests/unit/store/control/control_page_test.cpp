// SPDX-License-Identifier: Apache-2.0
#include "store/control/control_page.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "fs/posix_file_system.h"
#include "store/entry/removals.h"
#include "support/temporary_directory.h"

namespace modcache::store {
namespace {

class ControlPageTest : public ::testing::TestWithParam<ReadVia> {
 protected:
  ControlPageTest() { EXPECT_TRUE(ControlPage::create(files_, path_, 10).is_ok()); }

  Result<std::unique_ptr<ControlPage>> open() {
    return ControlPage::open(files_, path_, GetParam(), true);
  }
  void overwrite(std::streamoff offset, const std::string& bytes) {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(offset).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

  testing::TemporaryDirectory directory_;
  const std::string path_ = directory_ / "control";
  fs::FileSystem& files_ = fs::posix_file_system();
};

TEST_P(ControlPageTest, is_seen_alike_by_all_who_have_it_open) {
  auto one = std::move(open()).value();
  auto two = std::move(open()).value();
  EXPECT_EQ(one->next_sequence().value(), 10u);
  EXPECT_EQ(two->next_sequence().value(), 11u);
  const auto removals = two->removals();
  one->add_removal();
  EXPECT_EQ(two->removals(), removals + 1);
  const auto clears = two->clears();
  one->add_clear();
  EXPECT_EQ(two->clears(), clears + 1);
  const auto epoch = two->epoch();
  one->renew_epoch();
  EXPECT_NE(two->epoch(), epoch);
}

TEST_P(ControlPageTest, gives_each_number_once) {
  auto page = std::move(open()).value();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 1000; ++j) ASSERT_TRUE(page->next_sequence().is_ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(page->next_sequence().value(), 4010u);
}

TEST_P(ControlPageTest, raises_the_sequence_and_never_lowers_it) {
  auto page = std::move(open()).value();
  ASSERT_TRUE(page->raise_sequence(100).is_ok());
  ASSERT_TRUE(page->raise_sequence(50).is_ok());
  EXPECT_EQ(page->next_sequence().value(), 100u);
}

TEST_P(ControlPageTest, gives_no_number_again_that_may_have_been_lost) {
  auto page = std::move(open()).value();
  ASSERT_TRUE(page->raise_sequence_beyond_lost(50).is_ok());
  EXPECT_EQ(page->next_sequence().value(), 50u + (1u << 28));
  ASSERT_TRUE(page->raise_sequence_beyond_lost(50).is_ok());
  EXPECT_EQ(page->next_sequence().value(), 51u + (2u << 28));
  EXPECT_TRUE(page->is_plausible(9));
}

TEST_P(ControlPageTest, tells_what_is_missing_broken_and_newer) {
  overwrite(0, "X");
  EXPECT_EQ(open().status().code(), StatusCode::kCorruption);
  overwrite(0, "m");
  EXPECT_TRUE(open().is_ok());
  overwrite(8, std::string("\x03", 1));  // a flipped bit, not a version
  EXPECT_EQ(open().status().code(), StatusCode::kCorruption);
  overwrite(8, std::string("\x03\x00\x00\x00\xfc\xff\xff\xff", 8));
  EXPECT_EQ(open().status().code(), StatusCode::kUnsupportedVersion);
  std::filesystem::resize_file(path_, 100);
  EXPECT_EQ(open().status().code(), StatusCode::kCorruption);
  std::filesystem::remove(path_);
  EXPECT_TRUE(open().status().is_not_found());
}

TEST_P(ControlPageTest, gets_another_identity_and_epoch_when_made_anew) {
  auto before = std::move(open()).value();
  ASSERT_TRUE(ControlPage::create(files_, path_, 1).is_ok());
  auto after = std::move(open()).value();
  EXPECT_FALSE(before->identity().is_same_file(after->identity()));
  EXPECT_NE(before->epoch(), after->epoch());
  EXPECT_FALSE(are_of_one_source(before->removals(), after->removals()));
  after->add_removal();
  EXPECT_TRUE(are_of_one_source(after->removals(), after->removals() - 1));
}

INSTANTIATE_TEST_SUITE_P(ReadVia, ControlPageTest,
                         ::testing::Values(ReadVia::kMmap, ReadVia::kPread),
                         [](const auto& tested) {
                           return tested.param == ReadVia::kMmap ? "mmap" : "pread";
                         });

// io=pread is for directories whose files others may cut short, which must not kill the process.
TEST(ControlPageCutShortTest, survives_with_pread) {
  testing::TemporaryDirectory directory;
  const std::string path = directory / "control";
  fs::FileSystem& files = fs::posix_file_system();
  ASSERT_TRUE(ControlPage::create(files, path, 1).is_ok());
  auto page = std::move(ControlPage::open(files, path, ReadVia::kPread, true)).value();
  std::filesystem::resize_file(path, 0);
  EXPECT_EQ(page->removals(), 0u);
  EXPECT_EQ(page->next_sequence().status().code(), StatusCode::kIoError);
  page->add_removal();
}

TEST(ControlPageBootTest, knows_in_another_boot_only_what_was_confirmed) {
  testing::TemporaryDirectory directory;
  const std::string path = directory / "control";
  ASSERT_TRUE(ControlPage::create(fs::posix_file_system(), path, 10).is_ok());
  auto page = ControlPage::open(fs::posix_file_system(), path, ReadVia::kMmap, true);
  ASSERT_TRUE(page.is_ok());
  page.value()->set_boot(7);
  page.value()->set_committed(30);
  page.value()->raise_confirmed(20);
  EXPECT_EQ(page.value()->surely_committed(7), 30u);
  EXPECT_EQ(page.value()->surely_committed(0), 30u);  // it cannot be told
  EXPECT_EQ(page.value()->surely_committed(8), 20u);
}

}  // namespace
}  // namespace modcache::store
