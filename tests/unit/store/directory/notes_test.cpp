// SPDX-License-Identifier: Apache-2.0
#include "store/directory/notes.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <fstream>
#include <map>
#include <string>

#include "base/hash.h"
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

TEST_F(NotesTest, all_of_them_are_visited) {
  std::map<std::string, std::string> found;
  const auto visit = [&](std::string_view about, std::string_view text) {
    found.emplace(about, text);
  };
  EXPECT_TRUE(visit_notes(directory_, visit).is_ok()) << "no folder is no note";
  const std::map<std::string, std::string> kept{{"a", "one\ntwo"}, {"b\n", ""}, {"", "c"}};
  for (const auto& [about, text] : kept) ASSERT_TRUE(keep_note(directory_, about, text).is_ok());
  ASSERT_TRUE(visit_notes(directory_, visit).is_ok());
  EXPECT_EQ(found, kept);
}

TEST_F(NotesTest, what_is_no_whole_note_is_not_visited) {
  ASSERT_TRUE(keep_note(directory_, "about", "text").is_ok());
  const std::string path = only_file();
  std::string whole;
  std::getline(std::ifstream(path), whole, '\0');
  const auto visits = [&] {
    int count = 0;
    EXPECT_TRUE(visit_notes(directory_, [&](auto, auto) { ++count; }).is_ok());
    return count;
  };
  EXPECT_EQ(visits(), 1);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    std::ofstream(path) << whole.substr(0, size);
    EXPECT_EQ(visits(), 0) << size;
  }
  std::ofstream(path) << whole << "more";
  EXPECT_EQ(visits(), 0);
  std::ofstream(directory_.notes_path() + "/another name") << whole;
  EXPECT_EQ(visits(), 0);
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

TEST_F(NotesTest, of_too_many_the_older_ones_go) {
  ASSERT_TRUE(keep_note(directory_, "note 0", "text").is_ok());
  for (std::size_t i = 1; i < kMostNotes; ++i) {
    std::ofstream(directory_.notes_path() + "/" + std::to_string(i)) << "any";
  }
  ASSERT_TRUE(keep_note(directory_, "note " + std::to_string(kMostNotes), "text").is_ok());
  const auto names = fs::posix_file_system().list(directory_.notes_path()).value();
  EXPECT_LE(names.size(), kMostNotes / 2 + 1);
  EXPECT_TRUE(find_note(directory_, "note 0").is_not_found());
  EXPECT_TRUE(find_note(directory_, "note " + std::to_string(kMostNotes)).is_ok());
}

TEST_F(NotesTest, the_oldest_go_where_a_new_one_does_not_fit) {
  const std::string text(1000, 'x');
  for (int i = 1; i <= 3; ++i) {
    ASSERT_TRUE(keep_note(directory_, std::to_string(i), text).is_ok());
    const timespec times[2] = {{i, 0}, {i, 0}};
    const std::string path = directory_.notes_path() + '/' + blake2b_128(std::to_string(i)).hex();
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }
  const auto kept = [&] {
    std::string all;
    for (const char* about : {"1", "2", "3", "4"}) {
      if (find_note(directory_, about).is_ok()) all += about;
    }
    return all;
  };
  constexpr std::uint64_t kThreeNotes = 3600;
  ASSERT_TRUE(keep_note(directory_, "3", text, kThreeNotes).is_ok());
  EXPECT_EQ(kept(), "123") << "what it takes the place of counts no more";
  ASSERT_TRUE(keep_note(directory_, "4", text, kThreeNotes).is_ok());
  EXPECT_EQ(kept(), "234");
  ASSERT_TRUE(keep_note(directory_, "1", std::string(4000, 'x'), kThreeNotes).is_ok());
  EXPECT_EQ(kept(), "234") << "what can never fit pushes nothing out";
}

TEST_F(NotesTest, what_a_writer_that_died_left_goes_after_an_hour) {
  ASSERT_TRUE(keep_note(directory_, "a", "text").is_ok());
  const std::string left = directory_.notes_path() + "/dead.1-0.new";
  const std::string made_now = directory_.notes_path() + "/alive.1-0.new";
  std::ofstream(left) << "half";
  std::ofstream(made_now) << "half";
  const timespec times[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, left.c_str(), times, 0), 0);
  ASSERT_TRUE(keep_note(directory_, "b", "text").is_ok());
  EXPECT_FALSE(fs::posix_file_system().info(left).is_ok());
  EXPECT_TRUE(fs::posix_file_system().info(made_now).is_ok());
}

TEST_F(NotesTest, clearing_removes_them_all) {
  EXPECT_TRUE(clear_notes(directory_).is_ok());
  ASSERT_TRUE(keep_note(directory_, "a", "text").is_ok());
  EXPECT_TRUE(clear_notes(directory_).is_ok());
  EXPECT_TRUE(fs::posix_file_system().list(directory_.notes_path()).value().empty());
}

}  // namespace
}  // namespace modcache::store
