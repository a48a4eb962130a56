// SPDX-License-Identifier: Apache-2.0
#include "cache/file_version.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "fs/posix_file_system.h"
#include "support/cache_fixture.h"
#include "support/temporary_directory.h"

namespace modcache::cache {
namespace {

using ::testing::HasSubstr;

class FileVersionTest : public ::testing::Test {
 protected:
  FileVersionTest() { EXPECT_TRUE(cache_.configure({{"dir", place_ / "cache"}}).is_ok()); }

  void write(const std::string& content) const { std::ofstream(path_, std::ios::trunc) << content; }
  // What a copy that keeps times does, too.
  void set_time_of_write(const fs::FileInfo& as) const {
    timespec times[2] = {{0, UTIME_OMIT}, {}};
    times[1].tv_sec = as.modified_ns / 1'000'000'000;
    times[1].tv_nsec = as.modified_ns % 1'000'000'000;
    ASSERT_EQ(::utimensat(AT_FDCWD, path_.c_str(), times, 0), 0);
  }
  FileVersion settled() const { return look_at_settled(path_).value(); }
  std::string digest(const FileVersion& version, Mode mode = Mode::kOn) {
    return digest_of(version, cache_, mode).value();
  }

  const testing::TemporaryDirectory place_;
  const std::string path_ = place_ / "file";
  Cache cache_{testing::text_format()};
};

TEST_F(FileVersionTest, a_file_that_nobody_touches_is_one_version) {
  write("content");
  const FileVersion before = settled();
  EXPECT_TRUE(before.is_settled);
  EXPECT_TRUE(look_at(path_).value().is_same(before));
}

TEST_F(FileVersionTest, a_write_of_the_same_size_with_its_time_set_back_is_another) {
  write("content");
  const FileVersion before = settled();
  const std::string digest_before = digest(before);
  write("CONTENT");
  set_time_of_write(before.info);
  const FileVersion after = settled();
  EXPECT_EQ(after.info.modified_ns, before.info.modified_ns);
  EXPECT_FALSE(after.is_same(before));
  EXPECT_NE(digest(after), digest_before);
}

TEST_F(FileVersionTest, a_file_that_was_changed_just_now_is_not_settled) {
  write("content");
  EXPECT_FALSE(look_at(path_).value().is_settled);
}

TEST_F(FileVersionTest, one_that_was_seen_a_tick_ago_is_settled_whatever_its_time) {
  write("content");
  FileVersion earlier = look_at(path_).value();
  FileVersion now = earlier;
  now.seen_ns += 1;
  now.take_over(earlier);
  EXPECT_FALSE(now.is_settled);
  EXPECT_EQ(now.seen_ns, earlier.seen_ns);
  now.seen_ns += 4'000'000'000;
  now.take_over(earlier);
  EXPECT_TRUE(now.is_settled);
}

TEST_F(FileVersionTest, a_noted_digest_is_believed_for_this_version_alone) {
  write("content");
  const FileVersion first = settled();
  const std::string known = digest(first);
  // What the note says, and not what the file holds.
  cache_.keep_note("file " + path_, "", Mode::kOn);
  EXPECT_EQ(digest(first), known);
  write("other");
  const FileVersion second = settled();
  EXPECT_NE(digest(second), known);
  write("content");
  EXPECT_EQ(digest(settled()), known);
}

TEST_F(FileVersionTest, the_digest_of_an_unsettled_version_is_not_noted) {
  write("content");
  FileVersion version = settled();
  version.is_settled = false;
  (void)digest(version);
  EXPECT_FALSE(cache_.find_note("file " + path_, Mode::kOn).has_value());
  version.is_settled = true;
  (void)digest(version);
  EXPECT_TRUE(cache_.find_note("file " + path_, Mode::kOn).has_value());
}

TEST_F(FileVersionTest, a_mode_that_may_not_write_notes_nothing) {
  write("content");
  const FileVersion version = settled();
  const std::string known = digest(version, Mode::kRead);
  EXPECT_EQ(digest(version, Mode::kOff), known);
  EXPECT_FALSE(cache_.find_note("file " + path_, Mode::kRead).has_value());
  EXPECT_TRUE(fs::posix_file_system().info(place_ / "cache").is_not_found());
}

TEST_F(FileVersionTest, a_version_that_is_gone_has_no_digest) {
  write("content");
  const FileVersion before = settled();
  write("CONTENT");
  EXPECT_EQ(digest_of(before, cache_, Mode::kOff).status().code(), StatusCode::kBusy);
  EXPECT_EQ(::unlink(path_.c_str()), 0);
  EXPECT_TRUE(digest_of(before, cache_, Mode::kOff).is_not_found());
}

TEST_F(FileVersionTest, what_is_no_file_says_so) {
  EXPECT_TRUE(look_at(path_).is_not_found());
  EXPECT_THAT(look_at(place_ / "").status().message(), HasSubstr("is a directory"));
}

}  // namespace
}  // namespace modcache::cache
