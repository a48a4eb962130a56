// SPDX-License-Identifier: Apache-2.0
#include "store/notes.h"

#include <gmock/gmock.h>

#include <fstream>
#include <string>

#include "fs/posix_file_system.h"
#include "support/temporary_directory.h"

namespace modcache::store {
namespace {

class NotesTest : public ::testing::Test {
 protected:
  std::string only_file() const {
    const auto names = fs::posix_file_system().list(directory_.notes_path()).value();
    EXPECT_EQ(names.size(), 1U);
    return directory_.notes_path() + '/' + names.front();
  }

  const testing::TemporaryDirectory place_;
  const Directory directory_{fs::posix_file_system(), place_ / "cache"};
};

TEST_F(NotesTest, what_was_kept_is_found_and_nothing_else_is) {
  EXPECT_TRUE(find_note(directory_, "a").is_not_found());
  ASSERT_TRUE(keep_note(directory_, "a", "one\ntwo").is_ok());
  ASSERT_TRUE(keep_note(directory_, "b", "").is_ok());
  EXPECT_EQ(find_note(directory_, "a").value(), "one\ntwo");
  EXPECT_EQ(find_note(directory_, "b").value(), "");
  EXPECT_TRUE(find_note(directory_, "a\none").is_not_found());
}

TEST_F(NotesTest, the_last_one_wins_and_leaves_no_other_file) {
  ASSERT_TRUE(keep_note(directory_, "a", "a long text").is_ok());
  ASSERT_TRUE(keep_note(directory_, "a", "text").is_ok());
  EXPECT_EQ(find_note(directory_, "a").value(), "text");
  (void)only_file();
}

TEST_F(NotesTest, a_damaged_note_is_none) {
  ASSERT_TRUE(keep_note(directory_, "about", "text").is_ok());
  const std::string path = only_file();
  std::string whole;
  std::getline(std::ifstream(path), whole, '\0');
  const auto found_in = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::trunc) << bytes;
    return find_note(directory_, "about");
  };
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    EXPECT_TRUE(found_in(damaged).is_not_found()) << i;
    EXPECT_TRUE(found_in(whole.substr(0, i)).is_not_found()) << i;
  }
  EXPECT_TRUE(found_in(whole + '\n').is_not_found());
  EXPECT_TRUE(found_in(std::string(1 << 20, 'x')).is_not_found());
  EXPECT_EQ(found_in(whole).value(), "text");
}

TEST_F(NotesTest, a_note_is_short) {
  const std::string longest(kMaxNoteSizeBytes - 1, 'x');
  ASSERT_TRUE(keep_note(directory_, "a", longest).is_ok());
  EXPECT_EQ(find_note(directory_, "a").value(), longest);
  EXPECT_EQ(keep_note(directory_, "ab", longest).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace modcache::store
