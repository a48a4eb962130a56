// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "fs/posix_file_system.h"
#include "support/temporary_directory.h"

namespace modcache::fs {
namespace {

TEST(PosixCallsTest, a_failure_names_the_path_and_tells_what_callers_tell_apart) {
  EXPECT_EQ(failure("open", "/a/b", ENOENT).message(),
            "cannot open '/a/b': No such file or directory");
  EXPECT_TRUE(failure("open", "/a", ENOENT).is_not_found());
  for (const int error : {ENOSPC, EDQUOT, EFBIG}) {
    EXPECT_EQ(failure("write", "/a", error).code(), StatusCode::kNoSpace);
  }
  EXPECT_EQ(failure("read", "/a", EACCES).code(), StatusCode::kIoError);
}

FileInfo info_of(const std::string& path) {
  struct stat facts {};
  EXPECT_EQ(::lstat(path.c_str(), &facts), 0);
  return to_info(facts);
}

TEST(PosixCallsTest, tells_what_stands_at_a_path) {
  const testing::TemporaryDirectory directory;
  ASSERT_EQ(::mkfifo((directory / "pipe").c_str(), 0640), 0);
  ASSERT_EQ(::symlink("nowhere", (directory / "link").c_str()), 0);
  const FileInfo pipe = info_of(directory / "pipe");
  EXPECT_STREQ(pipe.kind, "named pipe (FIFO)");
  EXPECT_FALSE(pipe.is_regular);
  EXPECT_TRUE(pipe.is_own());
  EXPECT_EQ(pipe.link_count, 1u);
  EXPECT_EQ(pipe.permissions & 0600, 0600u);
  EXPECT_STREQ(info_of(directory / "link").kind, "symbolic link");
  EXPECT_TRUE(info_of(directory.path()).is_directory);
  EXPECT_STREQ(info_of("/dev/null").kind, "device");
}

TEST(PosixCallsTest, an_interrupted_call_is_made_again_and_no_other_failure) {
  int calls = 0;
  const auto interrupted_twice = [&calls] {
    errno = EINTR;
    return ++calls < 3 ? -1 : 7;
  };
  EXPECT_EQ(retry_interrupted(interrupted_twice), 7);
  EXPECT_EQ(calls, 3);
  const auto broken = [&calls] {
    errno = EIO;
    ++calls;
    return -1;
  };
  EXPECT_EQ(retry_interrupted(broken), -1);
  EXPECT_EQ(calls, 4);
}

}  // namespace
}  // namespace modcache::fs
