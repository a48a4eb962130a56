// SPDX-License-Identifier: Apache-2.0
#include "fs/posix_file_system.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "support/child_process.h"
#include "support/temporary_directory.h"

namespace modcache::fs {
namespace {

using testing::ChildProcess;
using ::testing::HasSubstr;
using testing::Pipe;
using ::testing::UnorderedElementsAre;

class PosixFileSystemTest : public ::testing::Test {
 protected:
  std::unique_ptr<File> open(const std::string& name, OpenMode mode = OpenMode::kReadWriteCreate) {
    auto file = system_.open(directory_ / name, mode);
    EXPECT_TRUE(file.is_ok()) << file.status().message();
    return std::move(file).value();
  }
  static std::string read(const File& file, std::uint64_t offset, std::size_t size) {
    std::string bytes(size, '?');
    auto count = file.read_at(offset, bytes.data(), size);
    EXPECT_TRUE(count.is_ok()) << count.status().message();
    bytes.resize(count.value());
    return bytes;
  }

  testing::TemporaryDirectory directory_;
  FileSystem& system_ = posix_file_system();
};

TEST_F(PosixFileSystemTest, names_what_is_missing) {
  for (const Status& status :
       {system_.open(directory_ / "gone", OpenMode::kRead).status(),
        system_.open(directory_ / "gone", OpenMode::kReadWrite).status(),
        system_.info(directory_ / "gone").status(), system_.list(directory_ / "gone").status(),
        system_.rename(directory_ / "gone", directory_ / "there"),
        system_.sync_directory(directory_ / "gone")}) {
    EXPECT_TRUE(status.is_not_found());
    EXPECT_THAT(status.message(), HasSubstr(directory_ / "gone"));
  }
  EXPECT_TRUE(system_.remove(directory_ / "gone").is_ok());
}

TEST_F(PosixFileSystemTest, creates_exclusively_only_once) {
  open("file", OpenMode::kCreateExclusive);
  EXPECT_EQ(system_.open(directory_ / "file", OpenMode::kCreateExclusive).status().code(),
            StatusCode::kIoError);
}

TEST_F(PosixFileSystemTest, reads_back_what_was_written_up_to_the_end) {
  auto file = open("file");
  ASSERT_TRUE(file->write_at(3, {{"abc", 3}, {"", 0}, {"defg", 4}}).is_ok());
  EXPECT_EQ(read(*file, 3, 7), "abcdefg");
  EXPECT_EQ(read(*file, 8, 100), "fg");
  EXPECT_EQ(read(*file, 100, 5), "");
  EXPECT_EQ(read(*file, 0, 3), std::string(3, '\0'));
  EXPECT_EQ(file->info().value().size_bytes, 10u);
}

TEST_F(PosixFileSystemTest, writes_more_pieces_than_one_call_takes) {
  auto file = open("file");
  std::vector<std::string> texts;
  std::string all;
  for (int i = 0; i < 5000; ++i) texts.push_back(std::to_string(i) + ",");
  std::vector<Slice> pieces;
  for (const std::string& text : texts) {
    pieces.push_back({text.data(), text.size()});
    all += text;
  }
  ASSERT_TRUE(file->write_at(0, pieces).is_ok());
  EXPECT_EQ(read(*file, 0, all.size() + 1), all);
}

TEST_F(PosixFileSystemTest, tells_a_full_disk_from_other_failures) {
  auto full = open("full");
  ChildProcess limited([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit none{0, 0};
    if (::setrlimit(RLIMIT_FSIZE, &none) != 0) return 1;
    return full->write_at(0, {{"x", 1}}).code() == StatusCode::kNoSpace ? 0 : 2;
  });
  EXPECT_EQ(limited.wait(), 0);
  auto read_only = open("file");
  read_only = open("file", OpenMode::kRead);
  const Status status = read_only->write_at(0, {{"x", 1}});
  EXPECT_EQ(status.code(), StatusCode::kIoError);
  EXPECT_THAT(status.message(), HasSubstr(directory_ / "file"));
}

TEST_F(PosixFileSystemTest, makes_directories_for_the_owner_alone) {
  ASSERT_TRUE(system_.make_directories(directory_ / "a/b/c").is_ok());
  ASSERT_TRUE(system_.make_directories(directory_ / "a/b/c").is_ok());
  EXPECT_TRUE(system_.info(directory_ / "a/b/c").value().is_directory);
  EXPECT_EQ(std::filesystem::status(directory_ / "a/b/c").permissions(),
            std::filesystem::perms::owner_all);
}

TEST_F(PosixFileSystemTest, refuses_a_directory_where_a_file_is) {
  open("file");
  EXPECT_EQ(system_.make_directories(directory_ / "file/below").code(), StatusCode::kIoError);
}

TEST_F(PosixFileSystemTest, lists_renames_and_removes) {
  open("one");
  open("two");
  EXPECT_THAT(system_.list(directory_.path()).value(), UnorderedElementsAre("one", "two"));
  ASSERT_TRUE(system_.rename(directory_ / "one", directory_ / "two").is_ok());
  EXPECT_THAT(system_.list(directory_.path()).value(), UnorderedElementsAre("two"));
  ASSERT_TRUE(system_.remove(directory_ / "two").is_ok());
  EXPECT_THAT(system_.list(directory_.path()).value(), UnorderedElementsAre());
  EXPECT_TRUE(system_.sync_directory(directory_.path()).is_ok());
}

TEST_F(PosixFileSystemTest, knows_an_open_file_that_was_unlinked_and_one_that_took_its_place) {
  auto file = open("file");
  const FileInfo before = file->info().value();
  EXPECT_EQ(before.link_count, 1u);
  ASSERT_TRUE(system_.remove(directory_ / "file").is_ok());
  EXPECT_EQ(file->info().value().link_count, 0u);
  open("file");
  EXPECT_FALSE(system_.info(directory_ / "file").value().is_same_file(before));
}

TEST_F(PosixFileSystemTest, maps_a_file_beyond_its_end_and_sees_it_grow) {
  auto file = open("file");
  ASSERT_TRUE(file->write_at(0, {{"abc", 3}}).is_ok());
  auto mapping = file->map(1 << 20, false);
  ASSERT_TRUE(mapping.is_ok());
  ASSERT_TRUE(file->write_at(3, {{"def", 3}}).is_ok());
  ASSERT_TRUE(file->sync_data().is_ok());
  file = nullptr;
  EXPECT_EQ(std::memcmp(mapping.value()->data(), "abcdef", 6), 0);
}

TEST_F(PosixFileSystemTest, a_copy_that_is_mapped_may_be_written_to_and_outlives_the_file) {
  const std::string contents = std::string(5000, 'a') + "bcdefg";
  auto file = open("file");
  ASSERT_TRUE(file->write_at(0, {{contents.data(), contents.size()}}).is_ok());
  const auto copy = file->map_copy(4999, 7).value();
  const auto other = file->map_copy(4999, 7).value();
  const auto shared = file->map(contents.size(), false).value();
  const auto text = [](const Mapping& mapping) {
    return std::string(reinterpret_cast<const char*>(mapping.data()), mapping.size_bytes());
  };
  EXPECT_EQ(text(*copy), "abcdefg");
  std::memset(copy->data(), 'x', 3);
  EXPECT_EQ(text(*copy), "xxxdefg");
  EXPECT_EQ(text(*other), "abcdefg");
  EXPECT_EQ(text(*shared), contents);
  file = nullptr;
  ASSERT_TRUE(system_.remove(directory_ / "file").is_ok());
  EXPECT_EQ(text(*copy), "xxxdefg");
}

TEST_F(PosixFileSystemTest, only_so_many_copies_are_mapped_at_once) {
  auto file = open("file");
  ASSERT_TRUE(file->write_at(0, {{"abc", 3}}).is_ok());
  std::vector<std::shared_ptr<Mapping>> copies;
  while (copies.size() < File::kMostCopies) copies.push_back(file->map_copy(0, 3).value());
  EXPECT_FALSE(file->map_copy(0, 3).is_ok());
  copies.pop_back();
  EXPECT_TRUE(file->map_copy(0, 3).is_ok());
}

TEST_F(PosixFileSystemTest, excludes_other_openings_of_a_locked_file) {
  auto one = open("lock");
  auto two = open("lock");
  EXPECT_TRUE(one->try_lock().value());
  EXPECT_FALSE(two->try_lock().value());
  const Status status = lock_within(*two, 5);
  EXPECT_EQ(status.code(), StatusCode::kBusy);
  EXPECT_THAT(status.message(), HasSubstr(directory_ / "lock"));
  one->unlock();
  EXPECT_TRUE(lock_within(*two, 5).is_ok());
  two = nullptr;
  EXPECT_TRUE(one->try_lock().value());
}

// A worker that outlives its parent must not keep the parent's lock.
TEST_F(PosixFileSystemTest, does_not_hand_locks_to_forked_children) {
  auto other = open("lock");
  Pipe hold;
  ChildProcess parent([&] {
    auto file = open("lock");
    if (!file->try_lock().value()) return 1;
    ChildProcess* grandchild = new ChildProcess([&] {
      hold.close_writing();
      char byte = 0;
      (void)hold.read(byte);  // until the test has seen what it wants
      return 0;
    });
    (void)grandchild;
    ::_exit(0);  // without waiting for the grandchild
  });
  ASSERT_EQ(parent.wait(), 0);
  // Waits, as the grandchild may not have run yet.
  EXPECT_TRUE(lock_within(*other, 30000).is_ok());
}

TEST_F(PosixFileSystemTest, does_not_hand_exclusive_holds_to_forked_children) {
  auto file = open("held");
  auto other = open("held");
  ASSERT_TRUE(file->try_hold(File::Hold::kExclusive).value());
  Pipe hold;
  Pipe begun;
  ChildProcess child([&] {
    hold.close_writing();
    char byte = 0;
    begun.write(byte);
    (void)hold.read(byte);
    return 0;
  });
  char byte = 0;
  ASSERT_TRUE(begun.read(byte));
  EXPECT_FALSE(other->try_hold(File::Hold::kExclusive).value()) << "the parent has it still";
  file = nullptr;
  EXPECT_TRUE(other->try_hold(File::Hold::kExclusive).value());
}

TEST_F(PosixFileSystemTest, keeps_the_parents_lock_when_a_child_ends) {
  auto file = open("lock");
  auto other = open("lock");
  ASSERT_TRUE(file->try_lock().value());
  EXPECT_EQ(ChildProcess([] { return 0; }).wait(), 0);
  EXPECT_FALSE(other->try_lock().value());
}

}  // namespace
}  // namespace modcache::fs
