// SPDX-License-Identifier: Apache-2.0
//
// What a cache counts in its directory, beyond the life of a process.
#include <gmock/gmock.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <string>

#include "fs/posix_file_system.h"
#include "store/control/directory_mode.h"
#include "store/counters/counter_totals.h"
#include "support/cache_fixture.h"

namespace modcache::cache {
namespace {

using testing::CacheTest;
using testing::Process;

class CacheCountersTest : public CacheTest {
 protected:
  std::int64_t kept(Counter counter, const std::string& scope = "scope") const {
    std::int64_t sum = 0;
    const auto read = store::read_counters(fs::posix_file_system(), dir_);
    if (!read.is_ok()) return 0;
    for (const store::CountedDay& day : read.value().days) {
      if (day.scope == scope) sum += day.counts.at(static_cast<std::size_t>(counter));
    }
    return sum;
  }
  bool has_counters() const { return std::filesystem::exists(dir_ + "/counters"); }
};

TEST_F(CacheCountersTest, hits_of_all_processes_add_up_by_scope) {
  here_.store("key", "text", "", 9);
  EXPECT_EQ(here_.lookup("key"), "text");
  here_.cache().flush();
  {
    Process there(dir_);
    EXPECT_EQ(there.lookup("key"), "text");
    EXPECT_EQ(there.lookup("key"), "text");
  }
  EXPECT_EQ(kept(Counter::kHitsMemory), 2);
  EXPECT_EQ(kept(Counter::kHitsDisk), 1);
  EXPECT_EQ(kept(Counter::kSavedUs), 27);
  EXPECT_EQ(kept(Counter::kStored), 1);
  EXPECT_GT(kept(Counter::kHitBytes), 0);
  EXPECT_GT(kept(Counter::kStoredBytes), 0);
  EXPECT_EQ(kept(Counter::kHitsMemory, "another scope"), 0);
}

TEST_F(CacheCountersTest, resetting_those_of_the_process_leaves_them_alone) {
  here_.store("key", "text");
  EXPECT_EQ(here_.lookup("key"), "text");
  here_.cache().reset_stats();
  EXPECT_EQ(here_.stat("hits_memory"), 0);
  EXPECT_EQ(kept(Counter::kHitsMemory), 1);
}

TEST_F(CacheCountersTest, what_was_counted_before_the_directory_was_made_is_in_there) {
  here_.cache().counters().add("scope", Counter::kMisses, 4);
  EXPECT_FALSE(has_counters());
  here_.store("key", "text");
  EXPECT_EQ(kept(Counter::kMisses), 4);
}

TEST_F(CacheCountersTest, a_process_whose_calls_all_pass_by_is_in_there_when_it_ends) {
  {
    Process there(dir_);
    there.cache().counters().add("scope", Counter::kBypassedGrad, 4);
    there.cache().flush();
    EXPECT_FALSE(std::filesystem::exists(dir_)) << "a directory is not made for it";
  }
  here_.store("key", "text");
  here_.cache().flush();
  Process there(dir_);
  there.cache().counters().add("scope", Counter::kBypassedGrad, 4);
  there.cache().close();
  EXPECT_EQ(kept(Counter::kBypassedGrad), 4);
}

TEST_F(CacheCountersTest, modes_that_forbid_to_write_count_in_the_process_alone) {
  for (const char* const mode : {"off", "read", "verify"}) {
    Process there(dir_);
    ASSERT_TRUE(there.configure({{"mode", mode}}).is_ok());
    there.cache().counters().add("scope", Counter::kMisses, 1);
    EXPECT_EQ(there.stat("misses"), 1);
    EXPECT_FALSE(has_counters()) << mode;
  }
  here_.store("key", "text");
  here_.cache().flush();
  ASSERT_TRUE(
      store::set_directory_mode(fs::posix_file_system(), dir_, store::DirectoryMode::kRead, 1000)
          .is_ok());
  EXPECT_EQ(here_.lookup("key", "", /*may_write=*/false), "text");
  EXPECT_EQ(here_.stat("hits_memory"), 1);
  EXPECT_EQ(kept(Counter::kHitsMemory), 0);
}

TEST_F(CacheCountersTest, a_directory_whose_files_may_be_cut_short_keeps_none) {
  ASSERT_TRUE(here_.configure({{"io", "pread"}}).is_ok());
  here_.store("key", "text");
  EXPECT_EQ(here_.lookup("key"), "text");
  EXPECT_EQ(here_.stat("hits_memory"), 1);
  EXPECT_FALSE(has_counters());
}

TEST_F(CacheCountersTest, each_directory_has_its_own) {
  here_.store("key", "text");
  ASSERT_TRUE(here_.configure({{"dir", directory_ / "other"}}).is_ok());
  here_.store("key", "text");
  here_.store("key 2", "text");
  EXPECT_EQ(kept(Counter::kStored), 1);
  ASSERT_TRUE(here_.configure({{"dir", dir_}}).is_ok());
  here_.store("key 3", "text");
  EXPECT_EQ(kept(Counter::kStored), 2);
}

TEST_F(CacheCountersTest, go_on_in_a_directory_that_was_removed_and_made_anew) {
  here_.store("key", "text");
  here_.cache().flush();
  std::filesystem::remove_all(dir_);
  // The directory is missed within 250 ms, or at the next flush, and counters look for theirs once
  // a second.
  const auto started = std::chrono::steady_clock::now();
  for (int i = 0; kept(Counter::kStored) == 0; ++i) {
    if (std::chrono::steady_clock::now() - started > std::chrono::seconds(20)) break;
    here_.store("key " + std::to_string(i), "text");
    here_.cache().flush();
  }
  EXPECT_GT(kept(Counter::kStored), 0);
}

TEST_F(CacheCountersTest, what_lies_in_the_directory_by_scope_is_told) {
  here_.store("key", "text");
  here_.store("key 2", "text");
  here_.cache().flush();
  EXPECT_EQ(here_.cache().bytes_by_scope(), (std::map<std::string, std::int64_t>{{"scope", 8}}));
  here_.cache().set_mode(Mode::kOff);
  EXPECT_TRUE(here_.cache().bytes_by_scope().empty());
}

}  // namespace
}  // namespace modcache::cache
