// SPDX-License-Identifier: Apache-2.0
#include "store/control/directory_mode.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <string>

#include "fs/posix_file_system.h"
#include "store/control/control_page.h"
#include "support/directory_bytes.h"
#include "support/store_fixture.h"

namespace modcache::store {
namespace {

using testing::get;
using ::testing::HasSubstr;
using testing::open_store;
using testing::put;
using ::testing::UnorderedElementsAre;

constexpr std::int64_t kPatienceMs = 20;

class DirectoryModeTest : public testing::StoreTest {
 protected:
  Status set(DirectoryMode mode) {
    return set_directory_mode(files_, directory_.path(), mode, kPatienceMs);
  }
  Result<DirectoryMode> mode() { return directory_mode(files_, directory_.path()); }
  std::vector<std::string> names() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  fs::FileSystem& files_ = fs::posix_file_system();
  const std::string page_ = directory_ / "control";
};

TEST_F(DirectoryModeTest, stays_until_it_is_changed) {
  EXPECT_EQ(mode().value(), DirectoryMode::kOn);
  for (const auto wanted : {DirectoryMode::kOff, DirectoryMode::kRead, DirectoryMode::kOn}) {
    ASSERT_TRUE(set(wanted).is_ok());
    EXPECT_EQ(mode().value(), wanted);
  }
}

// A page that says 0 would hide lost transactions, and a rebuild would bring replaced values back.
TEST_F(DirectoryModeTest, a_page_that_is_made_for_the_mode_learns_what_the_database_has) {
  {
    auto store = open_store(directory_.path());
    ASSERT_TRUE(put(*store, context_, "key", "first").is_ok());
    ASSERT_TRUE(put(*store, context_, "key", "second").is_ok());
  }
  std::filesystem::remove(page_);
  ASSERT_TRUE(set(DirectoryMode::kOn).is_ok());
  {
    auto store = open_store(directory_.path());
    EXPECT_EQ(get(*store, context_, "key"), "second");
  }
  auto control = ControlPage::open(files_, page_, ReadVia::kMmap, false);
  ASSERT_TRUE(control.is_ok()) << control.status().message();
  EXPECT_GE(control.value()->committed(), 2u);
  EXPECT_GE(control.value()->superseded(), 2u);
  EXPECT_GT(control.value()->next(), 1u << 27) << "sequences of lost records are not used again";
}

TEST_F(DirectoryModeTest, is_set_in_a_directory_that_is_made_for_it_and_nothing_but_the_page) {
  const std::string fresh = directory_ / "some/where";
  EXPECT_TRUE(directory_mode(files_, fresh).status().is_not_found());
  EXPECT_FALSE(std::filesystem::exists(fresh)) << "asking makes nothing";
  ASSERT_TRUE(set_directory_mode(files_, fresh, DirectoryMode::kOff, kPatienceMs).is_ok());
  EXPECT_EQ(directory_mode(files_, fresh).value(), DirectoryMode::kOff);
  ASSERT_TRUE(set(DirectoryMode::kRead).is_ok());
  EXPECT_THAT(names(), UnorderedElementsAre("some", "control", "lock"));
}

TEST_F(DirectoryModeTest, a_directory_whose_page_was_made_for_the_mode_stores_and_finds) {
  {
    auto store = open_store(directory_.path());
    ASSERT_TRUE(put(*store, context_, "key", "older").is_ok());
  }
  std::filesystem::remove(page_);
  ASSERT_TRUE(set(DirectoryMode::kRead).is_ok());
  auto store = open_store(directory_.path());
  EXPECT_EQ(get(*store, context_, "key"), "older");
  ASSERT_TRUE(put(*store, context_, "key", "newer").is_ok());
  ASSERT_TRUE(store->flush().is_ok());
  EXPECT_EQ(get(*open_store(directory_.path()), context_, "key"), "newer");
  EXPECT_EQ(mode().value(), DirectoryMode::kRead);
}

TEST_F(DirectoryModeTest, survives_the_page_that_it_stood_in) {
  ASSERT_TRUE(set(DirectoryMode::kOff).is_ok());
  testing::flip_bit(page_, 3);
  EXPECT_EQ(mode().value(), DirectoryMode::kOff) << "the rest of the page says it";
  open_store(directory_.path());
  EXPECT_EQ(mode().value(), DirectoryMode::kOff) << "in a page made anew";
  testing::flip_bit(page_, 3);
  ASSERT_TRUE(set(DirectoryMode::kRead).is_ok());
  EXPECT_EQ(mode().value(), DirectoryMode::kRead);
}

TEST_F(DirectoryModeTest, what_is_no_mode_is_taken_for_on) {
  ASSERT_TRUE(set(DirectoryMode::kOff).is_ok());
  for (const int byte : {0, 1, 4, 7}) {
    testing::flip_bit(page_, 320 + static_cast<std::uint64_t>(byte));
    EXPECT_EQ(mode().value(), DirectoryMode::kOn) << byte;
    testing::flip_bit(page_, 320 + static_cast<std::uint64_t>(byte));
  }
  std::filesystem::resize_file(page_, 100);
  EXPECT_EQ(mode().value(), DirectoryMode::kOn);
  ASSERT_TRUE(set(DirectoryMode::kOff).is_ok());
  EXPECT_EQ(mode().value(), DirectoryMode::kOff);
}

TEST_F(DirectoryModeTest, a_page_of_a_newer_version_keeps_every_byte) {
  ASSERT_TRUE(set(DirectoryMode::kRead).is_ok());
  std::string bytes = testing::file_bytes(page_);
  bytes.replace(8, 8, std::string("\x03\x00\x00\x00\xfc\xff\xff\xff", 8));
  testing::write_file(page_, bytes);
  EXPECT_EQ(mode().status().code(), StatusCode::kUnsupportedVersion);
  EXPECT_EQ(set(DirectoryMode::kOff).code(), StatusCode::kUnsupportedVersion);
  EXPECT_EQ(testing::file_bytes(page_), bytes);
}

TEST_F(DirectoryModeTest, a_file_has_none) {
  const std::string file = directory_ / "file";
  testing::write_file(file, "text");
  EXPECT_THAT(directory_mode(files_, file).status().message(), HasSubstr("is a file"));
  const Status status = set_directory_mode(files_, file, DirectoryMode::kOff, kPatienceMs);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(testing::file_bytes(file), "text");
}

TEST_F(DirectoryModeTest, is_set_under_the_directorys_lock) {
  ASSERT_TRUE(set(DirectoryMode::kRead).is_ok());
  auto file = files_.open(directory_ / "lock", fs::OpenMode::kReadWrite);
  ASSERT_TRUE(file.value()->try_lock().value());
  EXPECT_EQ(set(DirectoryMode::kOff).code(), StatusCode::kBusy);
  file.value()->unlock();
  EXPECT_TRUE(set(DirectoryMode::kOff).is_ok());
}

TEST(DirectoryModeNameTest, each_is_read_back_by_its_name_and_others_are_refused) {
  for (const auto mode : {DirectoryMode::kOff, DirectoryMode::kRead, DirectoryMode::kOn}) {
    EXPECT_EQ(parse_directory_mode(directory_mode_name(mode)).value(), mode);
    EXPECT_EQ(mode_in(mode_word_of(static_cast<std::uint32_t>(mode))), mode);
  }
  for (const char* given : {"", "ON", "refresh", "verify"}) {
    const Status status = parse_directory_mode(given).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("one of: off, read, on")) << given;
  }
}

}  // namespace
}  // namespace modcache::store
