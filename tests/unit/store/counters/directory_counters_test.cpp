// SPDX-License-Identifier: Apache-2.0
#include "store/counters/directory_counters.h"

#include <gmock/gmock.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "fs/posix_file_system.h"
#include "store/counters/counter_totals.h"
#include "support/child_process.h"
#include "support/temporary_directory.h"

namespace modcache::store {
namespace {

using CountsByScope = std::map<std::string, std::int64_t>;

void count(DirectoryCounters& counters, const std::string& scope, std::int64_t amount) {
  const DirectoryCounters::Addition addition{0, amount};
  counters.add(scope, std::span<const DirectoryCounters::Addition>(&addition, 1));
}

class DirectoryCountersTest : public ::testing::Test {
 protected:
  DirectoryCountersTest() { EXPECT_TRUE(fs::posix_file_system().make_directories(path_).is_ok()); }
  std::unique_ptr<DirectoryCounters> process() const {
    return std::make_unique<DirectoryCounters>(fs::posix_file_system(), path_);
  }
  CountsByScope counts() const {
    CountsByScope counts;
    const auto read = read_counters(fs::posix_file_system(), path_).value();
    for (const CountedDay& day : read.days) counts[day.scope] += day.counts[0];
    return counts;
  }
  std::size_t files() const {
    const auto names = fs::posix_file_system().list(path_ + "/counters");
    return names.is_ok() ? names.value().size() : 0;
  }

  const testing::TemporaryDirectory place_;
  const std::string path_ = place_ / "cache";
};

TEST_F(DirectoryCountersTest, counts_by_scope_and_day) {
  const auto here = process();
  here->attach();
  count(*here, "a", 1);
  count(*here, "a", 1);
  count(*here, "", 5);
  EXPECT_EQ(counts(), (CountsByScope{{"a", 2}, {"", 5}}));
  const auto read = read_counters(fs::posix_file_system(), path_).value();
  EXPECT_EQ(read.days[0].day, day_of(now_us()));
}

TEST_F(DirectoryCountersTest, writes_nothing_before_it_is_attached_and_then_what_waited) {
  const auto here = process();
  count(*here, "a", 3);
  EXPECT_EQ(files(), 0U);
  here->attach();
  EXPECT_EQ(counts(), (CountsByScope{{"a", 3}}));
  count(*here, "a", 1);
  EXPECT_EQ(counts(), (CountsByScope{{"a", 4}}));
}

TEST_F(DirectoryCountersTest, many_counters_are_added_at_once_under_the_name_of_a_context) {
  const auto here = process();
  here->attach();
  const std::vector<DirectoryCounters::Addition> additions{{0, 2}, {1, 7}};
  here->add({1, 2}, "a", additions);
  here->add({1, 2}, "a", additions);
  here->add({3, 4}, "a", additions);
  const auto read = read_counters(fs::posix_file_system(), path_).value();
  ASSERT_EQ(read.days.size(), 1U);
  EXPECT_EQ(read.days[0].counts[0], 6);
  EXPECT_EQ(read.days[0].counts[1], 21);
}

TEST_F(DirectoryCountersTest, loses_no_count_between_threads_that_attach_and_detach) {
  const auto here = process();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 5'000; ++i) count(*here, "scope " + std::to_string(t % 2), 1);
    });
  }
  for (int i = 0; i < 20; ++i) {
    here->attach();
    here->detach();
  }
  for (auto& thread : threads) thread.join();
  here->attach();
  EXPECT_EQ(counts(), (CountsByScope{{"scope 0", 10'000}, {"scope 1", 10'000}}));
}

TEST_F(DirectoryCountersTest, more_scopes_than_a_file_has_slots_go_into_another_file) {
  const auto here = process();
  here->attach();
  // One slot of each file is for those that have none.
  const std::size_t scopes = 2 * (kCounterSlots - 1) + 1;
  for (std::size_t i = 0; i < scopes; ++i) count(*here, "scope " + std::to_string(i), 1);
  EXPECT_EQ(counts().size(), scopes);
  EXPECT_EQ(files(), 3U);
}

TEST_F(DirectoryCountersTest, scopes_that_take_turns_keep_their_slots) {
  const auto here = process();
  here->attach();
  constexpr int kScopes = 40;
  for (int i = 0; i < 40 * kScopes; ++i) count(*here, "scope " + std::to_string(i % kScopes), 1);
  EXPECT_EQ(files(), 2U);
  const CountsByScope found = counts();
  EXPECT_EQ(found.size(), static_cast<std::size_t>(kScopes));
  for (const auto& [scope, counted] : found) EXPECT_EQ(counted, 40) << scope;
  EXPECT_EQ(read_counters(fs::posix_file_system(), path_).value().live_processes, 1U);
}

TEST_F(DirectoryCountersTest, what_waits_in_a_parent_is_not_written_by_its_children) {
  const auto here = process();
  count(*here, "a", 50);
  for (int i = 0; i < 3; ++i) {
    testing::ChildProcess child([&] {
      count(*here, "a", 1);
      here->attach();
      return 0;
    });
    EXPECT_EQ(child.wait(), 0);
  }
  EXPECT_TRUE(here->has_waiting_counts());
  here->attach();
  EXPECT_FALSE(here->has_waiting_counts());
  EXPECT_EQ(counts(), (CountsByScope{{"a", 53}}));
}

TEST_F(DirectoryCountersTest, a_file_that_somebody_removed_is_missed_within_seconds) {
  const auto here = process();
  here->attach();
  count(*here, "a", 1);
  std::filesystem::remove_all(path_ + "/counters");
  for (int i = 0; i < 100 && counts().empty(); ++i) {
    count(*here, "a", 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_FALSE(counts().empty());
}

TEST_F(DirectoryCountersTest, a_directory_that_was_removed_is_not_made_anew) {
  const auto here = process();
  std::filesystem::remove_all(path_);
  EXPECT_FALSE(here->attach());
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(DirectoryCountersTest, scopes_without_end_are_counted_together_in_the_end) {
  const auto here = process();
  here->attach();
  constexpr int kScopes = 1'000;
  for (int i = 0; i < kScopes; ++i) count(*here, "scope " + std::to_string(i), 1);
  std::int64_t sum = 0;
  for (const auto& [scope, count] : counts()) sum += count;
  EXPECT_EQ(sum, kScopes);
  EXPECT_GT(counts().at(std::string(kOtherScopes)), 0);
  EXPECT_EQ(files(), 16U);
}

TEST_F(DirectoryCountersTest, goes_on_in_a_directory_that_was_made_anew) {
  const auto here = process();
  here->attach();
  count(*here, "a", 1);
  const auto names = fs::posix_file_system().list(path_ + "/counters").value();
  for (const std::string& name : names) {
    ASSERT_TRUE(fs::posix_file_system().remove(path_ + "/counters/" + name).is_ok());
  }
  here->detach();
  count(*here, "a", 2);
  here->attach();
  count(*here, "a", 3);
  EXPECT_EQ(counts(), (CountsByScope{{"a", 5}}));
}

TEST_F(DirectoryCountersTest, a_process_that_is_killed_loses_nothing) {
  testing::ChildProcess child([&] {
    const auto there = process();
    there->attach();
    count(*there, "a", 7);
    count(*there, "a", 1);
    ::raise(SIGKILL);
    return 0;
  });
  EXPECT_EQ(child.wait(), -1);
  EXPECT_EQ(counts(), (CountsByScope{{"a", 8}}));
}

TEST_F(DirectoryCountersTest, a_forked_child_counts_in_its_parents_file) {
  const auto here = process();
  here->attach();
  count(*here, "a", 1);
  testing::ChildProcess child([&] {
    count(*here, "a", 10);
    count(*here, "b", 100);
    here->attach();
    count(*here, "a", 1000);
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(counts(), (CountsByScope{{"a", 1011}, {"b", 100}}));
  EXPECT_EQ(files(), 1U);
}

TEST_F(DirectoryCountersTest, many_files_of_ended_processes_are_gathered_by_the_next_process) {
  for (int i = 0; i < 20; ++i) {
    const auto ended = process();
    ended->attach();
    count(*ended, "a", 1);
  }
  EXPECT_LE(files(), 9U);
  EXPECT_EQ(counts(), (CountsByScope{{"a", 20}}));
}

}  // namespace
}  // namespace modcache::store
