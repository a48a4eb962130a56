// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "cache/cache.h"
#include "support/cache_fixture.h"
#include "support/captured_log.h"

namespace modcache::cache {
namespace {

using testing::CacheTest;
using testing::Process;
using ::testing::SizeIs;
using testing::text_entry;
using testing::text_of;

TEST_F(CacheTest, a_bad_option_changes_nothing) {
  here_.store("key", "text");
  const Options before = here_.cache().settings();
  const Status status = here_.configure({{"dir", directory_ / "other"}, {"match", "wrong"}});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(here_.cache().settings(), before);
  EXPECT_EQ(here_.lookup("key"), "text");
}

TEST_F(CacheTest, the_mode_that_was_set_stands_until_a_mode_is_configured) {
  EXPECT_EQ(here_.cache().mode(), Mode::kOn);
  here_.cache().set_mode(Mode::kOff);
  ASSERT_TRUE(here_.configure({{"match", "none"}}).is_ok());
  EXPECT_EQ(here_.cache().mode(), Mode::kOff);
  EXPECT_EQ(here_.cache().settings().at("mode"), "off");
  ASSERT_TRUE(here_.configure({{"mode", "read"}}).is_ok());
  EXPECT_EQ(here_.cache().mode(), Mode::kRead);
}

TEST_F(CacheTest, settings_that_come_with_a_model_give_way_to_what_was_chosen) {
  const Options of_model = {{"dir", directory_ / "other"}, {"match", "none"}, {"mode", "read"}};
  here_.cache().set_mode(Mode::kOn);
  ASSERT_TRUE(here_.cache().configure_unset(of_model).is_ok());
  const Options settings = here_.cache().settings();
  EXPECT_EQ(settings.at("dir"), dir_);   // configured
  EXPECT_EQ(settings.at("mode"), "on");  // set
  EXPECT_EQ(settings.at("match"), "none");
  EXPECT_TRUE(here_.cache().is_given("dir"));
  EXPECT_TRUE(here_.cache().is_given("mode"));
  EXPECT_FALSE(here_.cache().is_given("match"));
  ASSERT_TRUE(here_.cache().configure_unset({{"match", "input"}}).is_ok());
  EXPECT_EQ(here_.cache().settings().at("match"), "input");
}

TEST_F(CacheTest, settings_that_come_with_a_model_give_way_to_the_environment) {
  ::setenv("MODCACHE_MIN_RUN_US", "7", /*overwrite=*/1);
  EXPECT_TRUE(here_.cache().is_given("min_run_us"));
  ASSERT_TRUE(here_.cache().configure_unset({{"min_run_us", "9"}}).is_ok());
  ::unsetenv("MODCACHE_MIN_RUN_US");
  EXPECT_NE(here_.cache().settings().at("min_run_us"), "9");
  ASSERT_TRUE(here_.cache().configure_unset({{"min_run_us", "9"}}).is_ok());
  EXPECT_EQ(here_.cache().settings().at("min_run_us"), "9");
}

TEST_F(CacheTest, a_bad_option_that_comes_with_a_model_changes_nothing) {
  const Options before = here_.cache().settings();
  const Status status = here_.cache().configure_unset({{"min_run_us", "9"}, {"match", "wrong"}});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(here_.cache().settings(), before);
}

TEST_F(CacheTest, the_mode_is_what_process_and_thread_leave) {
  here_.cache().set_mode(Mode::kRead);
  const ModeGuard guard(Mode::kVerify);
  EXPECT_EQ(here_.cache().mode(), Mode::kVerify);
  here_.cache().set_mode(Mode::kRefresh);
  EXPECT_EQ(here_.cache().mode(), Mode::kOff);
  EXPECT_EQ(here_.cache().settings().at("mode"), "refresh");  // the process's own
}

TEST_F(CacheTest, a_guard_keeps_threads_from_clearing_what_they_may_not_write) {
  here_.store("key", "text");
  here_.cache().flush();
  {
    const ModeGuard guard(Mode::kVerify);
    EXPECT_EQ(here_.cache().clear({}, Cache::Tier::kDisk), 0);
    EXPECT_EQ(here_.cache().clear({}, Cache::Tier::kAll), 0);
    EXPECT_EQ(here_.stat("entries_memory"), 1) << "what stays on disk is not gone from memory";
  }
  here_.cache().set_mode(Mode::kRefresh);
  EXPECT_EQ(here_.cache().clear({}, Cache::Tier::kDisk), 1);
}

TEST_F(CacheTest, while_refreshing_the_directory_is_counted) {
  here_.store("key", "text");
  here_.cache().flush();
  Process there(dir_);
  there.cache().set_mode(Mode::kRefresh);
  EXPECT_EQ(there.stat("entries_disk"), 1);
}

TEST_F(CacheTest, results_of_short_runs_are_not_kept) {
  ASSERT_TRUE(here_.configure({{"min_run_us", "1000"}}).is_ok());
  EXPECT_FALSE(here_.store("short", "text", "", 999));
  EXPECT_FALSE(here_.contains("short"));
  EXPECT_EQ(here_.stat("stored"), 0);
  EXPECT_TRUE(here_.store("long", "text", "", 1000));
  EXPECT_EQ(here_.lookup("long"), "text");
}

TEST_F(CacheTest, what_no_run_computed_is_always_kept) {
  ASSERT_TRUE(here_.configure({{"min_run_us", "1000"}}).is_ok());
  EXPECT_TRUE(here_.store("key", "text"));
  EXPECT_EQ(here_.lookup("key"), "text");
  EXPECT_EQ(here_.stat("saved_us"), 0);
}

TEST_F(CacheTest, a_short_run_replaces_an_older_result) {
  here_.store("key", "old", "", 5000);
  here_.cache().flush();
  ASSERT_TRUE(here_.configure({{"min_run_us", "1000"}}).is_ok());
  EXPECT_TRUE(here_.store("key", "new", "", 1));
  EXPECT_EQ(here_.lookup("key"), "new");
  Process there(dir_);
  here_.cache().flush();
  EXPECT_EQ(there.lookup("key"), "new");
}

TEST_F(CacheTest, with_the_mode_off_even_counting_opens_nothing) {
  here_.cache().set_mode(Mode::kOff);
  EXPECT_EQ(here_.stat("entries_disk"), 0);
  here_.cache().flush();
  here_.cache().close();
  EXPECT_FALSE(std::filesystem::exists(dir_));
}

TEST_F(CacheTest, another_directory_has_other_entries_and_the_first_keeps_its_own) {
  here_.store("key", "here");
  ASSERT_TRUE(here_.configure({{"dir", directory_ / "other"}}).is_ok());
  EXPECT_EQ(here_.lookup("key"), "<missing>");
  here_.store("key", "there");
  ASSERT_TRUE(here_.configure({{"dir", dir_}}).is_ok());
  EXPECT_EQ(here_.lookup("key"), "here");
}

TEST_F(CacheTest, an_option_that_does_not_touch_the_tiers_keeps_them) {
  here_.store("key", "text");
  ASSERT_TRUE(here_.configure({{"strict", "true"}, {"match", "none"}}).is_ok());
  EXPECT_EQ(here_.lookup("key"), "text");
  EXPECT_EQ(here_.stat("hits_memory"), 1);
}

TEST_F(CacheTest, a_call_uses_one_directory_from_start_to_end) {
  Keys begun = here_.keys("key");
  ASSERT_TRUE(here_.configure({{"dir", directory_ / "other"}}).is_ok());
  const EntryPtr entries[] = {text_entry("text")};
  here_.cache().store(begun, entries);
  EXPECT_EQ(here_.lookup("key"), "<missing>");
  begun.configuration.reset();  // the last that used its directory: what is queued is committed
  ASSERT_TRUE(here_.configure({{"dir", dir_}}).is_ok());
  EXPECT_EQ(here_.lookup("key"), "text");
}

TEST_F(CacheTest, the_directory_may_change_while_threads_call) {
  std::atomic<bool> is_over{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; !is_over || i < 50; ++i) {
        const std::string key = std::to_string(t) + ":" + std::to_string(i % 20);
        const Keys keys = here_.keys(key);
        const EntryPtr entries[] = {text_entry(keys.configuration->settings.dir + key)};
        const Found found = here_.cache().lookup(keys, testing::run_options());
        if (!found.is_found(0)) {
          here_.cache().store(keys, entries);
        } else if (text_of(found) != text_of(entries[0])) {
          ++wrong;
        }
      }
    });
  }
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(here_.configure({{"dir", i % 2 == 0 ? directory_ / "other" : dir_}}).is_ok());
  }
  is_over = true;
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(here_.stat("errors"), 0);
  EXPECT_EQ(here_.stat("corrupt"), 0);
}

TEST_F(CacheTest, memory_that_was_disabled_stays_so_until_it_is_configured) {
  here_.store("key", "text");
  here_.cache().disable_memory_tier();
  EXPECT_EQ(here_.stat("entries_memory"), 0);
  EXPECT_EQ(here_.stat("evicted"), 0) << "it is left as it lies";
  EXPECT_EQ(here_.lookup("key"), "text");
  EXPECT_EQ(here_.stat("hits_disk"), 1);
  ASSERT_TRUE(here_.configure({{"match", "none"}}).is_ok());
  EXPECT_EQ(here_.cache().settings().at("memory"), "0");
  ASSERT_TRUE(here_.configure({{"memory", "1MB"}}).is_ok());
  EXPECT_EQ(here_.lookup("key"), "text");
  EXPECT_EQ(here_.lookup("key"), "text");
  EXPECT_EQ(here_.stat("hits_memory"), 1);
}

TEST_F(CacheTest, what_no_tier_can_hold_is_not_stored_and_warned_about_once) {
  const testing::CapturedLog log;
  ASSERT_TRUE(here_.configure({{"disk", "0"}, {"memory", "10kB"}}).is_ok());
  here_.store("small", "text");
  here_.store("large", std::string(9900, 'x'));  // less than all of memory, but for its slot
  here_.store("large too", std::string(20000, 'x'));
  here_.store_rows({{"row", "text"}, {"large row", std::string(20000, 'x')}});
  EXPECT_EQ(here_.stat("stored"), 2);
  EXPECT_EQ(here_.stat("not_kept"), 3);
  EXPECT_EQ(here_.stat("entries_memory"), 2);
  EXPECT_THAT(log.about("more than all of memory"), SizeIs(1));
}

TEST_F(CacheTest, what_memory_holds_is_stored_although_the_directory_is_too_small) {
  const testing::CapturedLog log;
  ASSERT_TRUE(here_.configure({{"disk", "1MB"}, {"memory", "10MB"}}).is_ok());
  here_.store("key", std::string(990'000, 'x'));
  EXPECT_EQ(here_.stat("stored"), 1);
  EXPECT_EQ(here_.stat("not_kept"), 1);
  EXPECT_THAT(log.about("too large for"), SizeIs(1)) << "with the files of the directory itself";
  ASSERT_TRUE(here_.configure({{"memory", "0"}}).is_ok());
  here_.store("key", std::string(990'000, 'x'));
  EXPECT_EQ(here_.stat("stored"), 1);
  EXPECT_EQ(here_.stat("not_kept"), 2);
}

TEST_F(CacheTest, memory_is_not_disabled_where_it_is_all_there_is) {
  ASSERT_TRUE(here_.configure({{"disk", "0"}}).is_ok());
  here_.store("other", "text");  // opens the directory, whose count of removals is known then
  here_.store("key", "text");
  here_.cache().disable_memory_tier();
  EXPECT_EQ(here_.lookup("key"), "text");
  EXPECT_EQ(here_.stat("hits_memory"), 1);
}

}  // namespace
}  // namespace modcache::cache
