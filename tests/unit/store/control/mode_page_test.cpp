// SPDX-License-Identifier: Apache-2.0
#include "store/control/mode_page.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "fs/posix_file_system.h"
#include "support/captured_log.h"
#include "support/child_process.h"
#include "support/directory_bytes.h"
#include "support/fault_file_system.h"
#include "support/temporary_directory.h"

namespace modcache::store {
namespace {

using ::testing::SizeIs;

class ModePageTest : public ::testing::TestWithParam<ReadVia> {
 protected:
  void set(DirectoryMode mode) {
    ASSERT_TRUE(set_directory_mode(files_, directory_, mode, 1000).is_ok());
  }
  void set_number(std::uint64_t word) {
    std::string bytes = testing::file_bytes(path_);
    bytes.replace(320, sizeof word, reinterpret_cast<const char*>(&word), sizeof word);
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

  testing::TemporaryDirectory parent_;
  const std::string directory_ = parent_ / "cache";
  const std::string path_ = directory_ + "/control";
  fs::FileSystem& files_ = fs::posix_file_system();
  ModePage page_{files_, directory_, GetParam()};
};

TEST_P(ModePageTest, the_next_question_sees_what_was_set) {
  for (int i = 0; i < 3; ++i) {
    for (const auto mode : {DirectoryMode::kOff, DirectoryMode::kOn, DirectoryMode::kRead}) {
      set(mode);
      EXPECT_EQ(page_.mode(), mode);
      EXPECT_EQ(page_.mode(), mode);
    }
  }
}

TEST_P(ModePageTest, sees_a_page_that_comes_after_the_first_question) {
  EXPECT_EQ(page_.mode(), DirectoryMode::kOn);
  EXPECT_FALSE(std::filesystem::exists(directory_));
  set(DirectoryMode::kOff);
  EXPECT_EQ(page_.mode(), DirectoryMode::kOff);
}

TEST_P(ModePageTest, costs_one_stat_while_there_is_no_page) {
  testing::FaultFileSystem files(files_);
  ModePage page(files, directory_, GetParam());
  EXPECT_EQ(page.mode(), DirectoryMode::kOn);
  files.faults().fail_at(0, testing::Fault::kIoError, false, testing::kEveryCall);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(page.mode(), DirectoryMode::kOn);
  EXPECT_EQ(files.faults().calls(), 10);
  set(DirectoryMode::kOff);
  EXPECT_EQ(page.mode(), DirectoryMode::kOff);
}

TEST_P(ModePageTest, of_no_directory_it_asks_nothing) {
  testing::FaultFileSystem files(files_);
  files.faults().fail_at(0, testing::Fault::kIoError, false, testing::kEveryCall);
  ModePage page(files, "", GetParam());
  for (std::uint32_t i = 0; i < 2 * ModePage::kQuestionsBetweenLooks; ++i) {
    ASSERT_EQ(page.mode(), DirectoryMode::kOn);
  }
  EXPECT_EQ(files.faults().calls(), 0);
}

TEST_P(ModePageTest, goes_over_to_a_page_that_takes_the_place_of_the_one_it_knows) {
  set(DirectoryMode::kRead);
  EXPECT_EQ(page_.mode(), DirectoryMode::kRead);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(ControlPage::create(files_, path_, 1).is_ok());
    EXPECT_EQ(page_.mode(), DirectoryMode::kRead);
    set(DirectoryMode::kOff);
    EXPECT_EQ(page_.mode(), DirectoryMode::kOff);
    set(DirectoryMode::kRead);
  }
}

TEST_P(ModePageTest, notices_after_a_while_that_the_page_was_removed) {
  set(DirectoryMode::kOff);
  EXPECT_EQ(page_.mode(), DirectoryMode::kOff);
  std::filesystem::remove_all(directory_);
  for (std::uint32_t i = 0; i < ModePage::kQuestionsBetweenLooks; ++i) (void)page_.mode();
  EXPECT_EQ(page_.mode(), DirectoryMode::kOn);
  set(DirectoryMode::kOff);
  EXPECT_EQ(page_.mode(), DirectoryMode::kOff);
  std::filesystem::remove_all(directory_);
  set(DirectoryMode::kRead);
  for (std::uint32_t i = 0; i < ModePage::kQuestionsBetweenLooks; ++i) (void)page_.mode();
  EXPECT_EQ(page_.mode(), DirectoryMode::kRead);
}

TEST_P(ModePageTest, a_damaged_page_says_its_mode_until_it_is_mended) {
  set(DirectoryMode::kOff);
  testing::flip_bit(path_, 2);
  EXPECT_EQ(page_.mode(), DirectoryMode::kOff);
  EXPECT_EQ(page_.mode(), DirectoryMode::kOff);
  set(DirectoryMode::kRead);
  EXPECT_EQ(page_.mode(), DirectoryMode::kRead);
  std::filesystem::resize_file(path_, 0);
  ModePage later(files_, directory_, GetParam());
  EXPECT_EQ(later.mode(), DirectoryMode::kOn);
}

TEST_P(ModePageTest, a_word_that_is_no_mode_is_on_and_one_line_in_the_log) {
  const testing::CapturedLog log;
  set(DirectoryMode::kOff);
  for (const std::uint64_t word : {kSupersededModeWord, mode_word_of(2), std::uint64_t{3}}) {
    set_number(word);
    EXPECT_EQ(page_.mode(), DirectoryMode::kOn);
    EXPECT_EQ(page_.mode(), DirectoryMode::kOn);
  }
  EXPECT_THAT(log.about("a mode that is none"), SizeIs(1));
  set(DirectoryMode::kOff);
  EXPECT_EQ(page_.mode(), DirectoryMode::kOff);
}

TEST_P(ModePageTest, a_file_in_the_directorys_place_has_no_mode) {
  testing::write_file(directory_, "a pack");
  EXPECT_EQ(page_.mode(), DirectoryMode::kOn);
  EXPECT_EQ(page_.mode(), DirectoryMode::kOn);
}

TEST_P(ModePageTest, forked_children_see_it_too) {
  set(DirectoryMode::kRead);
  EXPECT_EQ(page_.mode(), DirectoryMode::kRead);
  testing::Pipe is_set;
  testing::Pipe is_asked;
  testing::ChildProcess child([&] {
    is_set.close_writing();
    if (page_.mode() != DirectoryMode::kRead) return 1;
    char byte = 0;
    is_asked.write(byte);
    (void)is_set.read(byte);
    return page_.mode() == DirectoryMode::kOff ? 0 : 2;
  });
  is_asked.close_writing();
  char byte = 0;
  EXPECT_TRUE(is_asked.read(byte));
  set(DirectoryMode::kOff);
  is_set.write('x');
  EXPECT_EQ(child.wait(), 0);
}

TEST_P(ModePageTest, opens_the_page_anew_after_it_let_go) {
  set(DirectoryMode::kOff);
  EXPECT_EQ(page_.mode(), DirectoryMode::kOff);
  page_.let_go();
  EXPECT_EQ(page_.mode(), DirectoryMode::kOff);
}

INSTANTIATE_TEST_SUITE_P(ReadVia, ModePageTest, ::testing::Values(ReadVia::kMmap, ReadVia::kPread),
                         [](const auto& tested) {
                           return tested.param == ReadVia::kMmap ? "mmap" : "pread";
                         });

// io=pread is for directories whose files others may cut short.
TEST(ModePageCutShortTest, survives_with_pread) {
  testing::TemporaryDirectory directory;
  fs::FileSystem& files = fs::posix_file_system();
  ASSERT_TRUE(set_directory_mode(files, directory.path(), DirectoryMode::kOff, 1000).is_ok());
  ModePage page(files, directory.path(), ReadVia::kPread);
  EXPECT_EQ(page.mode(), DirectoryMode::kOff);
  std::filesystem::resize_file(directory / "control", 0);
  EXPECT_EQ(page.mode(), DirectoryMode::kOn);
}

}  // namespace
}  // namespace modcache::store
