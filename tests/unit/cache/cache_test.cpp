// SPDX-License-Identifier: Apache-2.0
#include "cache/cache.h"

#include <gmock/gmock.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "support/cache_fixture.h"
#include "support/captured_log.h"
#include "support/directory_bytes.h"

namespace modcache::cache {
namespace {

using ::testing::AllOf;
using testing::CacheTest;
using ::testing::HasSubstr;
using testing::Process;
using testing::text_entry;
using testing::text_of;

TEST_F(CacheTest, finds_what_was_stored_in_memory_and_counts_the_time_saved) {
  EXPECT_EQ(here_.lookup("key"), "<missing>");
  here_.store("key", "text", "", 250);
  EXPECT_EQ(here_.lookup("key"), "text");
  EXPECT_EQ(here_.lookup("key"), "text");
  EXPECT_EQ(here_.stat("stored"), 1);
  EXPECT_EQ(here_.stat("hits_memory"), 2);
  EXPECT_EQ(here_.stat("hits_disk"), 0);
  EXPECT_EQ(here_.stat("saved_us"), 500);
  EXPECT_EQ(here_.stat("misses"), 0) << "counted by the caller, who knows the rules";
}

TEST_F(CacheTest, finds_on_disk_what_another_process_flushed_then_in_memory) {
  here_.store("key", "text", "float32[2]", 9);
  here_.cache().flush();
  Process there(dir_);
  EXPECT_EQ(there.lookup("key", "float32[2]"), "text");
  EXPECT_EQ(there.lookup("key", "float32[2]"), "text");
  EXPECT_EQ(there.stat("hits_disk"), 1);
  EXPECT_EQ(there.stat("hits_memory"), 1);
  EXPECT_EQ(there.stat("saved_us"), 18);
}

TEST_F(CacheTest, without_a_memory_tier_every_hit_comes_from_disk) {
  ASSERT_TRUE(here_.configure({{"memory", "0"}}).is_ok());
  here_.store("key", "text");
  EXPECT_EQ(here_.lookup("key"), "text");
  EXPECT_EQ(here_.lookup("key"), "text");
  EXPECT_EQ(here_.stat("hits_disk"), 2);
  EXPECT_EQ(here_.stat("entries_memory"), 0);
}

TEST_F(CacheTest, what_memory_pushed_out_is_still_on_disk) {
  here_.store("key", "text");
  ASSERT_TRUE(here_.configure({{"memory", "0"}}).is_ok());
  EXPECT_EQ(here_.stat("evicted"), 1);
  EXPECT_EQ(here_.lookup("key"), "text");
}

TEST_F(CacheTest, shows_entries_and_bytes_of_both_tiers) {
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

TEST_F(CacheTest, contains_answers_for_both_tiers_without_counting) {
  here_.store("key", "text");
  here_.cache().flush();
  Process there(dir_);
  EXPECT_TRUE(here_.contains("key"));
  EXPECT_TRUE(there.contains("key"));
  EXPECT_FALSE(there.contains("other"));
  EXPECT_EQ(there.stat("hits_disk") + there.stat("hits_memory") + there.stat("misses"), 0);
}

// ----- signatures

struct MatchCase {
  const char* match;
  const char* stored;
  const char* given;
  bool is_hit;
};
std::ostream& operator<<(std::ostream& out, const MatchCase& c) {
  return out << c.match << ": " << c.stored << " asked for with " << c.given;
}

class MatchTest : public CacheTest, public ::testing::WithParamInterface<MatchCase> {};

TEST_P(MatchTest, ComparesTheSignatureOfTheInput) {
  const testing::CapturedLog log;
  ASSERT_TRUE(here_.configure({{"match", GetParam().match}}).is_ok());
  here_.store("key", "text", GetParam().stored);
  EXPECT_EQ(here_.lookup("key", GetParam().given), GetParam().is_hit ? "text" : "<missing>");
  EXPECT_EQ(here_.stat("key_conflicts"), GetParam().is_hit ? 0 : 1);
}

INSTANTIATE_TEST_SUITE_P(
    Cache, MatchTest,
    ::testing::Values(MatchCase{"input", "float32[2,3]", "float32[2,3]", true},
                      MatchCase{"input", "float32[2,3]", "float32[2,4]", false},
                      MatchCase{"input", "float32[2,3]", "float32[2,3,1]", false},
                      MatchCase{"input", "float32[2,3]", "float64[2,3]", false},
                      MatchCase{"input", "(float32[2],int64[2])", "float32[2]", false},
                      MatchCase{"input", "", "float32[2]", true},
                      MatchCase{"input", "float32[2]", "", true},
                      MatchCase{"none", "float32[2,3]", "float32[2,3]", true},
                      MatchCase{"none", "float32[2,3]", "int64[7]", true},
                      MatchCase{"none", "", "float32[2]", true},
                      MatchCase{"none", "float32[2]", "", true}));

TEST_F(CacheTest, a_conflicting_key_is_replaced_and_warned_about_with_both_shapes) {
  const testing::CapturedLog log;
  here_.store("key", "one", "float32[2,3]");
  EXPECT_EQ(here_.lookup("key", "float32[2,4]"), "<missing>");
  here_.store("key", "two", "float32[2,4]");
  EXPECT_EQ(here_.lookup("key", "float32[2,4]"), "two");
  EXPECT_EQ(here_.stat("hits_memory"), 1);
  for (const auto& message : log.about("stored for an input")) {  // once per process and scope
    EXPECT_THAT(message, AllOf(HasSubstr("float32[2,3]"), HasSubstr("'key'")));
  }
}

TEST_F(CacheTest, a_lookup_says_whether_its_miss_is_a_conflict) {
  const testing::CapturedLog log;
  here_.store("key", "one", "float32[2,3]");
  const auto is_conflict = [this](const std::string& key, const std::string& signature) {
    SingleFlight::Lead lead;
    Session::Missed missed;
    (void)here_.cache().session()->lookup(Process::request(key, signature), true, lead, &missed);
    return missed.is_conflict;
  };
  EXPECT_TRUE(is_conflict("key", "float32[2,4]"));
  EXPECT_FALSE(is_conflict("key", "float32[2,3]"));
  EXPECT_FALSE(is_conflict("another", "float32[2,3]"));
}

// ----- other processes

TEST_F(CacheTest, a_clear_by_another_process_is_seen_by_the_next_lookup) {
  here_.store("key", "text");
  here_.cache().flush();
  EXPECT_EQ(here_.lookup("key"), "text");
  Process there(dir_);
  EXPECT_EQ(there.cache().clear({}, Cache::Tier::kAll), 1);
  EXPECT_EQ(here_.lookup("key"), "<missing>");
}

TEST_F(CacheTest, a_clear_leaves_what_its_filter_does_not_name_in_memory) {
  here_.store("a", "1");
  here_.store("b", "2");
  here_.cache().flush();
  Process there(dir_);
  EXPECT_EQ(there.cache().clear({"", "a"}, Cache::Tier::kAll), 1);
  EXPECT_EQ(here_.lookup("a"), "<missing>");
  EXPECT_EQ(here_.lookup("b"), "2");
  EXPECT_EQ(here_.stat("hits_disk"), 0) << "compared with the directory, not read from it again";
}

TEST_F(CacheTest, an_entry_that_another_process_replaced_is_seen) {
  here_.store("key", "one");
  here_.cache().flush();
  EXPECT_EQ(here_.lookup("key"), "one");
  Process there(dir_);
  there.store("key", "two");
  there.cache().flush();
  EXPECT_EQ(here_.lookup("key"), "two");
}

// Sequences begin anew there: each directory calls its first entry the same.
TEST_F(CacheTest, what_memory_holds_is_forgotten_where_another_directory_took_the_place) {
  const testing::CapturedLog quiet;
  here_.store("key", "one");
  here_.store("another", "text");
  here_.cache().flush();
  std::filesystem::remove_all(dir_);
  Process there(dir_);
  there.store("key", "two");
  there.cache().flush();
  here_.cache().flush();  // looks at the files; the thread that writes would do so in a moment
  EXPECT_EQ(here_.lookup("key"), "two");
  EXPECT_EQ(here_.lookup("another"), "<missing>");
  EXPECT_EQ(there.cache().clear({}, Cache::Tier::kAll), 1);
  EXPECT_EQ(here_.lookup("key"), "<missing>");
}

TEST_F(CacheTest, flush_makes_what_was_stored_visible_to_every_process) {
  Process there(dir_);
  EXPECT_EQ(there.lookup("key"), "<missing>");
  here_.store("key", "text");
  here_.cache().flush();
  EXPECT_EQ(there.lookup("key"), "text");
}

TEST_F(CacheTest, close_keeps_what_was_queued_and_the_cache_goes_on) {
  here_.store("key", "text");
  here_.cache().close();
  Process there(dir_);
  EXPECT_EQ(there.lookup("key"), "text");
  EXPECT_EQ(here_.lookup("key"), "text");
}

TEST_F(CacheTest, clears_one_tier_or_both) {
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

TEST_F(CacheTest, a_damaged_file_is_a_miss) {
  const testing::CapturedLog log;
  here_.store("key", "the payload to damage");
  here_.cache().flush();
  here_.cache().close();
  for (const auto& path : testing::segment_files(dir_)) {
    const auto place = testing::file_bytes(path).find("the payload to damage");
    if (place != std::string::npos) testing::flip_bit(path, place);
  }
  Process there(dir_);
  EXPECT_EQ(there.lookup("key"), "<missing>");
  EXPECT_EQ(there.stat("corrupt"), 1);
  EXPECT_EQ(there.stat("hits_disk"), 0);
}

// ----- single flight

TEST_F(CacheTest, threads_that_miss_one_key_at_once_run_it_once) {
  std::atomic<int> runs{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      const SessionPtr session = here_.cache().session();
      const Request request = Process::request("key");
      SingleFlight::Lead lead;
      EntryPtr entry = session->lookup(request, true, lead);
      if (entry == nullptr) {
        ++runs;
        session->store(request, text_entry("text"));
        lead.stored();
        lead.give_up();
        return;
      }
      EXPECT_EQ(text_of(entry), "text");
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(runs, 1);
}

TEST_F(CacheTest, a_lookup_that_may_not_write_leads_nothing_and_makes_no_directory) {
  SingleFlight::Lead lead;
  EXPECT_EQ(here_.cache().session()->lookup(Process::request("key"), false, lead), nullptr);
  EXPECT_FALSE(lead.is_held());
  EXPECT_FALSE(std::filesystem::exists(dir_));
  EXPECT_EQ(here_.stat("errors"), 0);
}

}  // namespace
}  // namespace modcache::cache
