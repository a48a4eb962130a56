// SPDX-License-Identifier: Apache-2.0
//
// Which files are opened, and which are refused without being opened.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "fs/posix_file_system.h"
#include "support/directory_bytes.h"
#include "support/stranger.h"
#include "support/temporary_directory.h"

namespace modcache::fs {
namespace {

using ::testing::HasSubstr;
using testing::Thing;

class PosixOpenTest : public ::testing::Test {
 protected:
  Status open(const std::string& name, OpenMode mode) {
    return system_.open(directory_ / name, mode).status();
  }
  std::uint32_t rights(const std::string& name) {
    return system_.info(directory_ / name).value().permissions;
  }

  testing::TemporaryDirectory directory_;
  testing::Stranger stranger_;
  FileSystem& system_ = posix_file_system();
};

TEST_F(PosixOpenTest, opens_nothing_but_regular_files) {
  for (const Thing thing : {Thing::kPipe, Thing::kDirectory, Thing::kDevice, Thing::kSocket,
                            Thing::kLink, Thing::kDanglingLink, Thing::kLinkToFolder}) {
    if (!stranger_.put(thing, directory_ / "thing")) continue;  // only root makes devices
    for (const OpenMode mode :
         {OpenMode::kRead, OpenMode::kReadWrite, OpenMode::kReadWriteCreate}) {
      const Status status = open("thing", mode);
      EXPECT_EQ(status.code(), StatusCode::kForeign) << testing::name_of(thing);
      EXPECT_THAT(status.message(), HasSubstr(directory_ / "thing"));
    }
    EXPECT_FALSE(open("thing", OpenMode::kCreateExclusive).is_ok()) << testing::name_of(thing);
  }
  EXPECT_TRUE(stranger_.is_untouched());
}

TEST_F(PosixOpenTest, follows_links_where_it_is_told_to_and_waits_for_no_pipe) {
  stranger_.put(Thing::kLink, directory_ / "link");
  EXPECT_TRUE(open("link", OpenMode::kReadFollowing).is_ok());
  stranger_.put(Thing::kPipe, directory_ / "pipe");
  EXPECT_EQ(open("pipe", OpenMode::kReadFollowing).code(), StatusCode::kForeign);
}

TEST_F(PosixOpenTest, reads_a_file_with_other_names_and_does_not_write_it) {
  stranger_.put(Thing::kHardLink, directory_ / "file");
  EXPECT_TRUE(open("file", OpenMode::kRead).is_ok());
  EXPECT_EQ(open("file", OpenMode::kReadWrite).code(), StatusCode::kForeign);
  EXPECT_EQ(open("file", OpenMode::kReadWriteCreate).code(), StatusCode::kForeign);
}

TEST_F(PosixOpenTest, goes_through_no_folder_that_is_a_link) {
  stranger_.put(Thing::kLinkToFolder, directory_ / "folder");
  for (const Status& status :
       {open("folder/file", OpenMode::kRead), open("folder/new", OpenMode::kCreateExclusive),
        system_.list(directory_ / "folder").status(), system_.remove(directory_ / "folder/file"),
        system_.rename(directory_ / "folder/file", directory_ / "file"),
        system_.sync_directory(directory_ / "folder")}) {
    EXPECT_EQ(status.code(), StatusCode::kForeign);
    EXPECT_THAT(status.message(), HasSubstr("symbolic link"));
  }
  EXPECT_TRUE(stranger_.is_untouched());
  EXPECT_TRUE(system_.list(system_.resolve(directory_ / "folder")).is_ok());
}

TEST_F(PosixOpenTest, resolves_what_is_there_and_leaves_the_rest) {
  stranger_.put(Thing::kLinkToFolder, directory_ / "folder");
  const std::string real = system_.resolve(stranger_.folder());
  EXPECT_EQ(system_.resolve(directory_ / "folder"), real);
  EXPECT_EQ(system_.resolve(directory_ / "folder/new/one"), real + "/new/one");
  EXPECT_EQ(system_.resolve("/"), "/");
}

TEST_F(PosixOpenTest, what_is_made_has_no_right_that_its_folder_does_not_give) {
  const mode_t before = ::umask(0);
  (void)open("private", OpenMode::kCreateExclusive);
  (void)open("pack", OpenMode::kCreateToShare);
  ::chmod(directory_.path().c_str(), 0777);
  (void)open("shared", OpenMode::kCreateExclusive);
  ::umask(before);
  EXPECT_EQ(rights("private"), 0600U);
  EXPECT_EQ(rights("pack"), 0666U);
  EXPECT_EQ(rights("shared"), 0664U) << "not for everybody to write";
}

TEST_F(PosixOpenTest, takes_rights_from_own_files_alone) {
  testing::write_file(directory_ / "file", "bytes");
  ::chmod((directory_ / "file").c_str(), 0666);
  EXPECT_TRUE(system_.restrict_rights(directory_ / "file").is_ok());
  EXPECT_EQ(rights("file"), 0600U);
  ::chmod(stranger_.file().c_str(), 0666);
  for (const Thing thing : {Thing::kLink, Thing::kHardLink}) {
    stranger_.put(thing, directory_ / "other");
    EXPECT_FALSE(system_.restrict_rights(directory_ / "other").is_ok());
    EXPECT_EQ(system_.info(stranger_.file()).value().permissions, 0666U);
  }
}

}  // namespace
}  // namespace modcache::fs
