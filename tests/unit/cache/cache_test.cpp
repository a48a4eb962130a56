// SPDX-License-Identifier: Apache-2.0
#include "cache/cache.h"

#include <gmock/gmock.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "support/captured_log.h"
#include "support/directory_bytes.h"
#include "support/temporary_directory.h"
#include "support/text_value.h"

namespace modcache::cache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::text_entry;
using testing::text_of;

const testing::TextFormat& text_format() {
  static const testing::TextFormat format;
  return format;
}

// A Cache as one process has it; two of them on a directory are as two processes.
class Process {
 public:
  explicit Process(const std::string& directory) : cache_(text_format()) {
    EXPECT_TRUE(cache_.configure({{"dir", directory}}).is_ok());
  }
  Cache& cache() { return cache_; }

  std::string lookup(const std::string& key, const std::string& signature = "",
                     bool may_write = true) {
    SingleFlight::Lead lead;
    return text_of(cache_.session()->lookup(request(key, signature), may_write, lead));
  }
  void store(const std::string& key, const std::string& text, const std::string& signature = "",
             std::int64_t run_us = 0) {
    cache_.session()->store(request(key, signature), text_entry(text, signature, run_us));
  }
  bool contains(const std::string& key) { return cache_.session()->contains(request(key)); }
  std::int64_t stat(const std::string& name) { return cache_.stats().at(name); }
  Status configure(const Options& options) { return cache_.configure(options); }

  static Request request(std::string_view key, std::string_view signature = "") {
    static const ContextPtr context = [] {
      ContextParts parts;
      parts.scope = "scope";
      parts.method = "forward";
      return make_context(parts);
    }();
    return {context, key, signature};
  }

 private:
  Cache cache_;
};

class CacheTest : public ::testing::Test {
 protected:
  // Log settings are the process's own.
  ~CacheTest() override { set_log_level(LogLevel::kWarning); }

  testing::TemporaryDirectory directory_;
  const std::string dir_ = directory_ / "cache";
  Process here_{dir_};
};

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

TEST_P(MatchTest, decides_what_a_hit_must_have_in_common_with_its_input) {
  const testing::CapturedLog log;
  ASSERT_TRUE(here_.configure({{"match", GetParam().match}}).is_ok());
  here_.store("key", "text", GetParam().stored);
  EXPECT_EQ(here_.lookup("key", GetParam().given), GetParam().is_hit ? "text" : "<missing>");
  EXPECT_EQ(here_.stat("key_conflicts"), GetParam().is_hit ? 0 : 1);
}

INSTANTIATE_TEST_SUITE_P(
    Cache, MatchTest,
    ::testing::Values(MatchCase{"shape", "float32[2,3]", "float32[2,3]", true},
                      MatchCase{"shape", "float32[2,3]", "float32[2,4]", false},
                      MatchCase{"shape", "float32[2,3]", "float32[2,3,1]", false},
                      MatchCase{"shape", "float32[2,3]", "float64[2,3]", false},
                      MatchCase{"dtype", "float32[2,3]", "float32[4]", true},
                      MatchCase{"dtype", "(float32[2],int64[2])", "(float32[3],int64[3])", true},
                      MatchCase{"dtype", "float32[2,3]", "float64[2,3]", false},
                      MatchCase{"dtype", "(float32[2],int64[2])", "float32[2]", false},
                      MatchCase{"none", "float32[2,3]", "int64[7]", true},
                      MatchCase{"shape", "", "float32[2]", true},
                      MatchCase{"shape", "float32[2]", "", true}));

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

// ----- settings

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
  SessionPtr begun = here_.cache().session();
  ASSERT_TRUE(here_.configure({{"dir", directory_ / "other"}}).is_ok());
  begun->store(Process::request("key"), text_entry("text"));
  EXPECT_EQ(here_.lookup("key"), "<missing>");
  begun.reset();  // the last that used its directory: what is queued is committed
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
        const SessionPtr session = here_.cache().session();
        const Request request = Process::request(key);
        const std::string expected = session->settings().dir + key;
        SingleFlight::Lead lead;
        const EntryPtr entry = session->lookup(request, true, lead);
        if (entry == nullptr) {
          session->store(request, text_entry(expected));
          lead.stored();
        } else if (text_of(entry) != expected) {
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

}  // namespace
}  // namespace modcache::cache
