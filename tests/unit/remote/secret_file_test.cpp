// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "remote/address.h"
#include "support/directory_bytes.h"
#include "support/temporary_directory.h"

namespace modcache::remote {
namespace {

class SecretFileTest : public ::testing::Test {
 protected:
  Result<std::string> read() const { return read_secret_file(path_, "key_file", "the secret"); }
  Result<std::string> read(const std::string& content) const {
    testing::write_file(path_, content);
    return read();
  }

  testing::TemporaryDirectory directory_;
  const std::string path_ = directory_ / "secret";
};

TEST_F(SecretFileTest, the_end_of_the_line_is_no_part_of_the_secret) {
  EXPECT_EQ(read("abc").value(), "abc");
  EXPECT_EQ(read("abc\n").value(), "abc");
  EXPECT_EQ(read("abc\r\n").value(), "abc");
  EXPECT_EQ(read(" a b \n").value(), " a b ") << "blanks are part of it";
  const std::string binary("\0\xff\n\0x", 5);
  EXPECT_EQ(read(binary).value(), binary);
}

TEST_F(SecretFileTest, a_link_is_followed_as_secrets_are_mounted_so) {
  testing::write_file(directory_ / "data", "abc\n");
  ASSERT_EQ(::symlink("data", path_.c_str()), 0);
  EXPECT_EQ(read().value(), "abc");
}

TEST_F(SecretFileTest, an_empty_file_is_no_secret) {
  for (const char* content : {"", "\n", "\r\n\n"}) {
    const Status status = read(content).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("is empty"), std::string::npos);
  }
}

TEST_F(SecretFileTest, what_cannot_be_read_is_named_with_its_parameter_and_what_it_holds) {
  const std::string folder = directory_ / "folder";
  ASSERT_EQ(::mkdir(folder.c_str(), 0700), 0);
  const std::string pipe = directory_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {path_, folder, pipe, std::string()}) {
    const Status status = read_secret_file(path, "key_file", "the secret").status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << path;
    for (const std::string& part :
         {"'" + path + "'", std::string("key_file"), std::string("the secret")}) {
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    }
  }
}

// Two machines that take its beginning for the secret would share it with files that go on
// otherwise.
TEST_F(SecretFileTest, a_file_that_is_too_large_for_a_secret_is_refused_and_not_cut_short) {
  const std::string large(1 << 16, 'x');
  EXPECT_EQ(read(large).value(), large);
  const Status status = read(large + "y").status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("too large"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace modcache::remote
