// SPDX-License-Identifier: Apache-2.0
//
// Cache::store(), admission, clear(), and what happens to stored values that proved wrong.
#include <gmock/gmock.h>

#include <string>
#include <string_view>
#include <thread>

#include "cache/cache.h"
#include "support/cache_fixture.h"
#include "support/captured_log.h"
#include "support/eventually.h"

namespace modcache::cache {
namespace {

using ::testing::ElementsAre;
using testing::Process;

class CacheStoreTest : public testing::CacheTest {
 protected:
  // What a run of the key asks before it stores.
  bool admits(std::string_view key) { return Cache::admits(here_.keys(key), 0, {}); }
  bool bypasses() { return here_.cache().bypasses("scope", 1); }
  void set(const std::string& option, const std::string& value) {
    ASSERT_TRUE(here_.configure({{option, value}}).is_ok());
  }
  void note(std::string_view key, std::string_view difference, bool may_write = true) {
    here_.cache().note_compared(here_.keys(key), 0, "Encoder.forward", difference, may_write);
  }

  const testing::CapturedLog log_;
};

using CacheAdmissionTest = CacheStoreTest;
using CacheVerifyTest = CacheStoreTest;

TEST_F(CacheStoreTest, returns_how_many_entries_were_stored) {
  EXPECT_EQ(here_.store_rows({{"a", "1"}, {"b", "2"}}, "", 5), 2u);
  EXPECT_EQ(here_.store_rows({}), 0u);
  EXPECT_EQ(here_.stat("stored"), 2);
}

TEST_F(CacheStoreTest, results_of_quick_runs_only_replace_entries) {
  here_.store_rows({{"b", "2"}}, "", 5);
  set("min_run_us", "100");
  EXPECT_EQ(here_.store_rows({{"c", "3"}, {"d", "4"}}, "", 5), 0u) << "too quick";
  EXPECT_EQ(here_.store_rows({{"b", "new"}, {"c", "3"}}, "", 5), 1u) << "one replaces";
  EXPECT_EQ(here_.store_rows({{"c", "3"}, {"d", "4"}}, "", 100), 2u);
  EXPECT_THAT(here_.lookup_rows({"b"}), ElementsAre("memory: new"));
  StoreOptions replaces;
  replaces.replaces = true;
  EXPECT_TRUE(here_.store("whole", "text", "", 5, replaces));
}

TEST_F(CacheStoreTest, shows_entries_and_bytes_of_both_tiers) {
  here_.store("a", "1");
  here_.store("b", "2");
  here_.cache().flush();
  EXPECT_EQ(here_.stat("entries_memory"), 2);
  EXPECT_EQ(here_.stat("entries_disk"), 2);
  EXPECT_GT(here_.stat("bytes_memory"), 0);
  EXPECT_GT(here_.stat("bytes_disk"), 0);
  here_.cache().reset_stats();
  EXPECT_EQ(here_.stat("stored"), 0);
  EXPECT_EQ(here_.stat("entries_disk"), 2);
}

TEST_F(CacheStoreTest, flush_makes_what_was_stored_visible_to_every_process) {
  Process there(dir_);
  EXPECT_EQ(there.lookup("key"), "<missing>");
  here_.store("key", "text");
  here_.cache().flush();
  EXPECT_EQ(there.lookup("key"), "text");
}

TEST_F(CacheStoreTest, close_commits_what_was_queued_and_the_cache_goes_on) {
  here_.store("key", "text");
  here_.cache().close();
  Process there(dir_);
  EXPECT_EQ(there.lookup("key"), "text");
  EXPECT_EQ(here_.lookup("key"), "text");
}

TEST_F(CacheStoreTest, clears_one_tier_or_both) {
  here_.store("key", "text");
  (void)here_.cache().clear({}, Cache::Tier::kMemory);
  EXPECT_EQ(here_.stat("entries_memory"), 0);
  EXPECT_EQ(here_.lookup("key"), "text");
  EXPECT_EQ(here_.cache().clear({}, Cache::Tier::kDisk), 1);
  EXPECT_EQ(here_.lookup("key"), "<missing>");
  here_.store("key", "anew");
  EXPECT_EQ(here_.cache().clear({}, Cache::Tier::kAll), 1);
  EXPECT_EQ(here_.lookup("key"), "<missing>");
}

// ----- admission

TEST_F(CacheAdmissionTest, by_default_all_results_are_stored) {
  EXPECT_TRUE(admits("key"));
  EXPECT_TRUE(admits("key"));
}

TEST_F(CacheAdmissionTest, second_stores_when_a_key_has_run_before) {
  set("admission", "second");
  EXPECT_FALSE(admits("key"));
  EXPECT_TRUE(admits("key"));
  EXPECT_FALSE(admits("other"));
}

TEST_F(CacheAdmissionTest, second_stores_what_another_thread_waits_for) {
  set("admission", "second");
  const Keys keys = here_.keys("key");
  Found found = here_.cache().lookup(keys, testing::run_options());
  EXPECT_FALSE(Cache::admits(keys, 0, found.lead));
  set("admission", "second");
  const Keys again = here_.keys("key");
  std::thread waiting([&] { (void)here_.cache().wait_for(again); });
  EXPECT_TRUE(testing::eventually([&] { return found.lead.is_awaited(keys.addresses[0]); }));
  EXPECT_TRUE(Cache::admits(again, 0, found.lead));
  found.lead.kept_nothing();
  found.lead.give_up();
  waiting.join();
}

TEST_F(CacheAdmissionTest, a_thread_may_store_all_and_records_no_key) {
  set("admission", "second");
  EXPECT_FALSE(Cache::set_admits_all(true));
  EXPECT_TRUE(admits("key"));
  std::thread([&] { EXPECT_FALSE(admits("other thread")); }).join();
  EXPECT_TRUE(Cache::set_admits_all(false));
  EXPECT_FALSE(admits("key"));
}

TEST_F(CacheAdmissionTest, setting_admission_forgets_all_keys_and_other_settings_do_not) {
  set("admission", "second");
  admits("key");
  set("memory", "1MB");
  EXPECT_TRUE(admits("key"));
  set("admission", "second");
  EXPECT_FALSE(admits("key"));
  set("admission", "all");
  EXPECT_TRUE(admits("another"));
}

// ----- verify_share

TEST_F(CacheVerifyTest, what_differs_is_dropped_from_memory_and_directory) {
  here_.store("key", "wrong");
  here_.store("other", "right");
  here_.cache().flush();
  Process elsewhere(dir_);
  ASSERT_EQ(elsewhere.lookup("key"), "wrong");
  note("other", "");
  note("key", "all of it");
  EXPECT_EQ(here_.lookup("key"), "<missing>");
  EXPECT_EQ(elsewhere.lookup("key"), "<missing>");
  EXPECT_EQ(here_.lookup("other"), "right");
}

TEST_F(CacheVerifyTest, where_nothing_may_be_written_it_is_dropped_from_memory_alone) {
  here_.store("key", "wrong");
  here_.cache().flush();
  note("key", "all of it", /*may_write=*/false);
  EXPECT_EQ(here_.lookup("key"), "wrong");
  EXPECT_EQ(here_.stat("hits_disk"), 1);
  EXPECT_EQ(here_.stat("hits_memory"), 0);
}

TEST_F(CacheVerifyTest, calls_of_a_scope_that_is_switched_off_bypass_until_it_is_cleared) {
  set("verify_share", "0.5");
  EXPECT_FALSE(bypasses());
  for (int i = 0; i < 3; ++i) note("key", "all of it");
  EXPECT_TRUE(bypasses());
  EXPECT_EQ(here_.stat("bypassed_verify"), 1);
  EXPECT_FALSE(here_.cache().bypasses("another scope", 1));
  EXPECT_EQ(log_.about("SWITCHED OFF").size(), 1u);
  here_.cache().clear({"scope", ""}, Cache::Tier::kAll);
  EXPECT_FALSE(bypasses());
  EXPECT_EQ(here_.stat("bypassed_verify"), 1);
}

TEST_F(CacheVerifyTest, setting_verify_share_switches_scopes_on_again) {
  for (int i = 0; i < 3; ++i) note("key", "all of it");
  ASSERT_TRUE(here_.cache().is_switched_off("scope"));
  set("verify_share", "0.5");
  EXPECT_FALSE(here_.cache().is_switched_off("scope"));
}

}  // namespace
}  // namespace modcache::cache
