// SPDX-License-Identifier: Apache-2.0
//
// The mode of a directory, as calls of processes that use it see it.
#include <gmock/gmock.h>

#include <filesystem>
#include <string>
#include <vector>

#include "fs/posix_file_system.h"
#include "store/control/directory_mode.h"
#include "support/cache_fixture.h"
#include "support/child_process.h"
#include "support/directory_bytes.h"

namespace modcache::cache {
namespace {

using testing::CacheTest;
using testing::ChildProcess;
using testing::Pipe;
using testing::Process;
using ::testing::UnorderedElementsAre;

class CacheModeTest : public CacheTest {
 protected:
  static void set(const std::string& directory, const char* mode) {
    const Status status =
        store::set_directory_mode(fs::posix_file_system(), directory,
                                  store::parse_directory_mode(mode).value(), /*patience_ms=*/10000);
    ASSERT_TRUE(status.is_ok()) << status.message();
  }
  void set(const char* mode) { set(dir_, mode); }
  std::string mode() { return std::string(mode_name(here_.cache().mode())); }
  std::vector<std::string> names() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir_)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }
};

TEST_F(CacheModeTest, is_one_of_three_levels) {
  set("read");
  EXPECT_EQ(mode(), "read");
  here_.cache().set_mode(Mode::kVerify);
  EXPECT_EQ(mode(), "verify");
  here_.cache().set_mode(Mode::kRefresh);
  EXPECT_EQ(mode(), "off");
  set("on");
  EXPECT_EQ(mode(), "refresh");
  const ModeGuard guard(Mode::kRead);
  EXPECT_EQ(mode(), "off");
}

TEST_F(CacheModeTest, a_directory_that_is_not_used_has_no_say) {
  set("off");
  EXPECT_EQ(mode(), "off");
  ASSERT_TRUE(here_.configure({{"disk", "0"}}).is_ok());
  EXPECT_EQ(mode(), "on");
  ASSERT_TRUE(here_.configure({{"disk", "1GB"}}).is_ok());
  EXPECT_EQ(mode(), "off");
}

TEST_F(CacheModeTest, is_not_a_setting_of_the_process) {
  set("read");
  EXPECT_EQ(mode(), "read");
  EXPECT_EQ(here_.cache().settings().at("mode"), "on");
}

TEST_F(CacheModeTest, off_opens_nothing_but_the_page) {
  set("off");
  EXPECT_EQ(mode(), "off");
  EXPECT_EQ(here_.lookup("key"), "<missing>");
  EXPECT_FALSE(here_.contains("key"));
  EXPECT_EQ(here_.stat("entries_disk"), 0);
  EXPECT_EQ(here_.cache().clear({}, Cache::Tier::kAll), 0);
  here_.cache().flush();
  EXPECT_THAT(names(), UnorderedElementsAre("control", "lock"));
}

TEST_F(CacheModeTest, nothing_at_all_is_opened_while_process_or_thread_are_off) {
  {
    const ModeGuard guard(Mode::kOff);
    EXPECT_EQ(mode(), "off");
  }
  here_.cache().set_mode(Mode::kOff);
  EXPECT_EQ(mode(), "off");
  EXPECT_FALSE(std::filesystem::exists(dir_));
}

TEST_F(CacheModeTest, goes_with_the_directory_that_is_configured) {
  const std::string other = directory_ / "other";
  set("off");
  EXPECT_EQ(mode(), "off");
  ASSERT_TRUE(here_.configure({{"dir", other}}).is_ok());
  EXPECT_EQ(mode(), "on");
  set(other, "read");
  EXPECT_EQ(mode(), "read");
  ASSERT_TRUE(here_.configure({{"io", "pread"}}).is_ok());
  EXPECT_EQ(mode(), "read");
  ASSERT_TRUE(here_.configure({{"dir", dir_}}).is_ok());
  EXPECT_EQ(mode(), "off");
}

TEST_F(CacheModeTest, is_seen_in_a_directory_that_only_reading_is_allowed_in) {
  here_.store("key", "text");
  here_.cache().flush();
  set("read");
  namespace files = std::filesystem;
  files::permissions(dir_, files::perms::owner_write, files::perm_options::remove);
  EXPECT_EQ(mode(), "read");
  EXPECT_EQ(Process(dir_).lookup("key"), "text");
  files::permissions(dir_, files::perms::owner_write, files::perm_options::add);
  set("off");
  EXPECT_EQ(mode(), "off");
}

// ----- other processes

// Answers each byte with the first letter of the mode that its next call has.
int answer_modes(const std::string& dir, const Pipe& questions, const Pipe& answers) {
  Process process(dir);
  char question = 0;
  while (questions.read(question)) {
    // Calls: what would be looked up is looked up, and the page is made where there is none.
    if (question == 'c' && may_write(process.cache().mode())) (void)process.store("key", "text");
    answers.write(mode_name(process.cache().mode())[1]);
  }
  return 0;
}

class CacheModeOfOthersTest : public CacheModeTest, public ::testing::WithParamInterface<char> {};

TEST_P(CacheModeOfOthersTest, a_process_in_a_loop_sees_it_at_its_next_call) {
  Pipe questions;
  Pipe answers;
  ChildProcess child([&] {
    questions.close_writing();
    return answer_modes(dir_, questions, answers);
  });
  const auto answer = [&] {
    char letter = 0;
    questions.write(GetParam());
    EXPECT_TRUE(answers.read(letter));
    return letter;
  };
  EXPECT_EQ(answer(), 'n') << "on, before the directory has a mode";
  for (int i = 0; i < 100; ++i) {
    set("off");
    ASSERT_EQ(answer(), 'f') << i;
    set("read");
    ASSERT_EQ(answer(), 'e') << i;
    set("on");
    ASSERT_EQ(answer(), 'n') << i;
  }
  testing::flip_bit(dir_ + "/control", 0);
  set("off");  // in a page made anew
  EXPECT_EQ(answer(), 'f');
  questions.close_writing();
  EXPECT_EQ(child.wait(), 0);
}

INSTANTIATE_TEST_SUITE_P(Cache, CacheModeOfOthersTest, ::testing::Values('c', 'm'),
                         [](const auto& tested) {
                           return tested.param == 'c' ? "that_stores" : "that_opened_nothing";
                         });

TEST_F(CacheModeTest, stays_for_later_processes) {
  here_.store("key", "text");
  here_.cache().flush();
  set("off");
  Process later(dir_);
  EXPECT_EQ(later.cache().mode(), Mode::kOff);
  set("on");
  EXPECT_EQ(later.cache().mode(), Mode::kOn);
  EXPECT_EQ(later.lookup("key"), "text");
}

}  // namespace
}  // namespace modcache::cache
