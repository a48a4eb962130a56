// SPDX-License-Identifier: Apache-2.0
//
// Replaces each file of a directory by something else.
#include "store/directory/directory_files.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "store/directory/notes.h"
#include "store/verify/verify.h"
#include "support/captured_log.h"
#include "support/store_fixture.h"
#include "support/stranger.h"

namespace modcache::store {
namespace {

using ::testing::AnyOf;
using ::testing::Combine;
using ::testing::Contains;
using testing::get;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::open_store;
using testing::put;
using testing::Thing;
using ::testing::Values;
using Use = ForeignFile::Use;

class FilledDirectoryTest : public testing::StoreTest {
 protected:
  void fill() {
    auto store = open_store(directory_.path());
    ASSERT_TRUE(put(*store, context_, "key", "value").is_ok());
    ASSERT_TRUE(store->keep_note("about", "text").is_ok());
    ASSERT_TRUE(store->flush().is_ok());
  }
  // `segment` and `note` stand for the only one that exists.
  std::string path_of(const std::string& file) const {
    const char* folder = file == "segment" ? "segments" : file == "note" ? "notes" : nullptr;
    if (folder == nullptr) return directory_ / file;
    return std::filesystem::directory_iterator(directory_ / folder)->path();
  }
  static bool is_regular(const std::string& path) {
    return std::filesystem::is_regular_file(std::filesystem::symlink_status(path));
  }
  StoreOptions options() {
    StoreOptions options;
    options.directory = directory_.path();
    options.on_foreign_file = [this](const Status& status) { told_.push_back(status.message()); };
    return options;
  }

  testing::Stranger stranger_;
  std::vector<std::string> told_;
};

class ForeignFileTest : public FilledDirectoryTest,
                        public ::testing::WithParamInterface<std::tuple<const char*, Thing>> {
 protected:
  // A store that waits for another process here does so for its patience, and one that opens a pipe
  // and waits for its other end does so for ever. Both are far longer than this.
  static constexpr std::chrono::seconds kAtOnce{10};

  // Does everything that can be done with the directory.
  void use(StoreOptions options) {
    options.patience_ms = 60'000;
    auto store = Store::open(fs::posix_file_system(), std::move(options));
    if (!store.is_ok()) {
      EXPECT_EQ(store.status().code(), StatusCode::kForeign);
      told_.push_back(store.status().message());
      return;
    }
    EXPECT_THAT(get(*store.value(), context_, "key"),
                AnyOf("value", "<missing>", HasSubstr("segment")));
    (void)put(*store.value(), context_, "new", "new value");
    (void)store.value()->keep_note("about", "text");
    (void)store.value()->find_note("about");
    (void)store.value()->flush();
    (void)store.value()->clear({"scope", "new", 0});
    (void)store.value()->evict(0);
    (void)store.value()->totals();
  }
};

TEST_P(ForeignFileTest, is_told_of_and_nothing_outside_is_touched) {
  fill();
  const auto [file, thing] = GetParam();
  const std::string path = path_of(file);
  if (!stranger_.put(thing, path)) GTEST_SKIP() << "only root makes devices";
  const auto started = std::chrono::steady_clock::now();
  use(options());
  EXPECT_LT(std::chrono::steady_clock::now() - started, kAtOnce);
  EXPECT_THAT(told_, Contains(HasSubstr(path)));
  EXPECT_TRUE(stranger_.is_untouched());
}

TEST_P(ForeignFileTest, stops_no_reader) {
  fill();
  const auto [file, thing] = GetParam();
  if (!stranger_.put(thing, path_of(file))) GTEST_SKIP() << "only root makes devices";
  StoreOptions reading = options();
  reading.writable = false;
  const auto started = std::chrono::steady_clock::now();
  use(std::move(reading));
  EXPECT_LT(std::chrono::steady_clock::now() - started, kAtOnce);
  EXPECT_TRUE(stranger_.is_untouched());
}

std::string name_of_case(const ::testing::TestParamInfo<ForeignFileTest::ParamType>& info) {
  std::string name = std::get<0>(info.param);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '.' || c == '-'; }, '_');
  return name + "_" + testing::name_of(std::get<1>(info.param));
}

const auto kThings =
    Values(Thing::kPipe, Thing::kDirectory, Thing::kDevice, Thing::kSocket, Thing::kLink,
           Thing::kDanglingLink, Thing::kLinkToFolder, Thing::kHardLink);
INSTANTIATE_TEST_SUITE_P(files, ForeignFileTest,
                         Combine(Values("control", "lock", "index.sqlite", "index.sqlite-wal",
                                        "index.sqlite-shm", "index.sqlite-journal", "index.map",
                                        "policy.state", "segment", "note"),
                                 kThings),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(folders, ForeignFileTest,
                         Combine(Values("segments", "notes"),
                                 Values(Thing::kPipe, Thing::kDevice, Thing::kSocket, Thing::kLink,
                                        Thing::kDanglingLink, Thing::kLinkToFolder,
                                        Thing::kHardLink)),
                         name_of_case);

using DirectoryFilesTest = FilledDirectoryTest;

TEST_F(DirectoryFilesTest, a_directory_of_ours_has_nothing_foreign) {
  fill();
  const DirectoryFiles files = look_at_files(Directory(fs::posix_file_system(), directory_.path()));
  EXPECT_TRUE(files.foreign.empty());
  EXPECT_FALSE(files.is_written_by_all);
}

TEST_F(DirectoryFilesTest, a_table_that_is_a_link_is_made_anew_in_its_place) {
  fill();
  ASSERT_TRUE(stranger_.put(Thing::kLink, directory_ / "index.map"));
  auto store = open_store(options());
  EXPECT_EQ(get(*store, context_, "key"), "value");
  EXPECT_TRUE(put(*store, context_, "new", "value").is_ok());
  EXPECT_TRUE(store->flush().is_ok());
  EXPECT_TRUE(is_regular(directory_ / "index.map"));
  EXPECT_TRUE(stranger_.is_untouched());
}

TEST_F(DirectoryFilesTest, a_file_with_two_names_is_read_and_not_written) {
  fill();
  std::filesystem::create_hard_link(directory_ / "control", directory_ / "copy");
  auto store = open_store(options());
  EXPECT_TRUE(store->is_read_only());
  EXPECT_EQ(get(*store, context_, "key"), "value");
  EXPECT_THAT(told_, Contains(HasSubstr("2 names (hard links)")));
}

TEST_F(DirectoryFilesTest, another_users_file_is_read_and_not_written) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root gives files away";
  fill();
  ASSERT_EQ(::chown((directory_ / "control").c_str(), 65534, 65534), 0);
  auto store = open_store(options());
  EXPECT_TRUE(store->is_read_only());
  EXPECT_EQ(get(*store, context_, "key"), "value");
  EXPECT_THAT(told_, Contains(HasSubstr("another user")));
}

TEST_F(DirectoryFilesTest, who_only_reads_a_copy_of_hard_links_is_told_nothing) {
  fill();
  const testing::TemporaryDirectory copy;
  std::filesystem::copy(
      directory_.path(), copy / "cache",
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::create_hard_links);
  StoreOptions reading = options();
  reading.directory = copy / "cache";
  reading.writable = false;
  auto store = open_store(std::move(reading));
  EXPECT_EQ(get(*store, context_, "key"), "value");
  EXPECT_THAT(told_, IsEmpty());
}

TEST_F(DirectoryFilesTest, another_users_directory_is_read_and_whole) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root gives files away";
  fill();
  ASSERT_EQ(::chown(directory_.path().c_str(), 65534, 65534), 0);
  for (const auto& file : std::filesystem::recursive_directory_iterator(directory_.path())) {
    ASSERT_EQ(::chown(file.path().c_str(), 65534, 65534), 0);
  }
  StoreOptions reading = options();
  reading.writable = false;
  auto store = open_store(std::move(reading));
  EXPECT_EQ(get(*store, context_, "key"), "value");
  EXPECT_THAT(told_, IsEmpty());
  VerifyOptions verifying;
  verifying.directory = directory_.path();
  EXPECT_TRUE(verify_directory(fs::posix_file_system(), verifying).value().is_clean());
}

TEST_F(DirectoryFilesTest, leftovers_that_are_links_are_replaced) {
  fill();
  for (const char* file : {"control.new", "index.map.new", "policy.state.new"}) {
    ASSERT_TRUE(stranger_.put(Thing::kLink, directory_ / file));
  }
  for (const char* file : {"control", "index.map"}) std::filesystem::remove(directory_ / file);
  auto store = open_store(options());
  EXPECT_EQ(get(*store, context_, "key"), "value");
  EXPECT_TRUE(is_regular(directory_ / "control"));
  EXPECT_TRUE(stranger_.is_untouched());
}

TEST_F(DirectoryFilesTest, the_directory_itself_may_be_a_link_and_be_changed_to_another) {
  fill();
  const testing::TemporaryDirectory other;
  const testing::TemporaryDirectory links;
  std::filesystem::create_directory_symlink(directory_.path(), links / "cache");
  StoreOptions by_link = options();
  by_link.directory = links / "cache";
  auto store = open_store(std::move(by_link));
  EXPECT_EQ(get(*store, context_, "key"), "value");
  EXPECT_TRUE(store->is_attached());
  std::filesystem::remove(links / "cache");
  std::filesystem::create_directory_symlink(other.path(), links / "cache");
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_FALSE(store->is_attached());
}

TEST_F(DirectoryFilesTest, own_files_have_no_rights_that_the_directory_does_not_give) {
  fill();
  const auto rights = [&](const std::string& file) {
    return fs::posix_file_system().info(path_of(file)).value().permissions;
  };
  const std::vector<std::string> files{"control", "lock", "index.sqlite",
                                       "segment", "note", "index.map"};
  for (const std::string& file : files) {
    EXPECT_EQ(rights(file), 0600U) << file;
  }
}

TEST_F(DirectoryFilesTest, a_directory_that_all_may_write_is_told_of_once_or_refused) {
  testing::CapturedLog log;
  fill();
  ASSERT_EQ(::chmod(directory_.path().c_str(), 0777), 0);
  open_store(options());
  open_store(options());
  EXPECT_EQ(log.about("everybody on this machine").size(), 1U);
  StoreOptions strict = options();
  strict.is_strict = true;
  EXPECT_EQ(Store::open(fs::posix_file_system(), std::move(strict)).status().code(),
            StatusCode::kForeign);
  ASSERT_EQ(::chmod(directory_.path().c_str(), 0770), 0);
  StoreOptions shared = options();
  shared.is_strict = true;
  EXPECT_TRUE(Store::open(fs::posix_file_system(), std::move(shared)).is_ok());
}

}  // namespace
}  // namespace modcache::store
