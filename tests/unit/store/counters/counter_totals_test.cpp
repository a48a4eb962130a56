// SPDX-License-Identifier: Apache-2.0
#include "store/counters/counter_totals.h"

#include <gmock/gmock.h>

#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "fs/posix_file_system.h"
#include "store/counters/counter_file.h"
#include "store/counters/totals_file.h"
#include "support/temporary_directory.h"

namespace modcache::store {
namespace {

constexpr std::int32_t kSomeDay = 20'000;

class CounterTotalsTest : public ::testing::Test {
 protected:
  CounterTotalsTest() {
    EXPECT_TRUE(fs::posix_file_system().make_directories(directory_.path()).is_ok());
  }
  // A process that counted for a scope, and runs as long as the file is held.
  std::unique_ptr<CounterFile> process(const std::string& scope, std::int64_t count,
                                       std::int32_t day = kSomeDay) const {
    auto file = CounterFile::create(directory_).value();
    (*file->slot_of(scope, day))[0] += count;
    return file;
  }
  CounterTotals read() const {
    return read_counters(fs::posix_file_system(), directory_.path()).value();
  }
  std::map<std::string, std::int64_t> counts() const {
    std::map<std::string, std::int64_t> counts;
    for (const CountedDay& day : read().days) counts[day.scope] += day.counts[0];
    return counts;
  }
  void gather(std::size_t least_files = 1) const {
    EXPECT_TRUE(gather_counters(directory_, least_files, 1000).is_ok());
  }
  Status zero() const { return zero_counters(fs::posix_file_system(), directory_.path()); }
  std::size_t files() const {
    return fs::posix_file_system().list(directory_.counters_path()).value().size();
  }

  std::string only_file() const {
    return directory_.counters_path() + '/' +
           fs::posix_file_system().list(directory_.counters_path()).value().at(0);
  }
  // Gathers as a process that dies before it removes the file.
  void gather_and_leave(const std::string& path) const {
    std::ifstream original(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(original), {}};
    gather();
    std::ofstream(path, std::ios::binary) << bytes;
  }
  // Holds the file as one who takes it away.
  static std::unique_ptr<fs::File> hold(const std::string& path) {
    auto file = fs::posix_file_system().open(path, fs::OpenMode::kReadWrite).value();
    EXPECT_TRUE(file->try_hold(fs::File::Hold::kExclusive).value());
    return file;
  }

  const testing::TemporaryDirectory place_;
  const Directory directory_{fs::posix_file_system(), place_ / "cache"};
};

using Scopes = std::map<std::string, std::int64_t>;

TEST_F(CounterTotalsTest, a_directory_where_nothing_was_counted_has_none) {
  EXPECT_TRUE(read().days.empty());
  EXPECT_EQ(read().since_us, 0);
  EXPECT_TRUE(zero().is_ok());
  EXPECT_TRUE(counts().empty());
}

TEST_F(CounterTotalsTest, a_pack_and_a_missing_directory_are_errors) {
  const std::string file = place_ / "pack";
  std::ofstream(file) << "bytes";
  EXPECT_EQ(read_counters(fs::posix_file_system(), file).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(read_counters(fs::posix_file_system(), place_ / "none").is_not_found());
}

TEST_F(CounterTotalsTest, processes_that_run_and_that_ended_count_alike) {
  const auto running = process("a", 1);
  (void)process("a", 10);
  (void)process("b", 100);
  EXPECT_EQ(counts(), (Scopes{{"a", 11}, {"b", 100}}));
  EXPECT_EQ(read().live_processes, 1U);
  EXPECT_GT(read().since_us, 0);
}

TEST_F(CounterTotalsTest, days_come_in_order_one_for_each_pair) {
  (void)process("b", 1, kSomeDay);
  (void)process("a", 2, kSomeDay);
  (void)process("a", 3, kSomeDay - 1);
  (void)process("a", 4, kSomeDay);
  std::vector<std::string> seen;
  for (const CountedDay& day : read().days) {
    seen.push_back(std::to_string(day.day - kSomeDay) + day.scope + std::to_string(day.counts[0]));
  }
  EXPECT_THAT(seen, ::testing::ElementsAre("-1a3", "0a6", "0b1"));
}

TEST_F(CounterTotalsTest, gathering_removes_files_of_ended_processes_and_changes_no_number) {
  const auto running = process("a", 1);
  for (int i = 0; i < 5; ++i) (void)process("a", 10);
  const std::int64_t since_us = read().since_us;
  gather(/*least_files=*/7);
  EXPECT_EQ(files(), 6U) << "there are fewer than seven";
  gather();
  EXPECT_EQ(files(), 2U) << "that of the running process and the totals";
  EXPECT_EQ(counts(), (Scopes{{"a", 51}}));
  EXPECT_EQ(read().since_us, since_us);
  (*running->slot_of("a", kSomeDay))[0] += 1;
  EXPECT_EQ(counts(), (Scopes{{"a", 52}}));
}

TEST_F(CounterTotalsTest, a_file_that_was_gathered_and_not_removed_counts_once) {
  (void)process("a", 10);
  gather_and_leave(only_file());
  EXPECT_EQ(counts(), (Scopes{{"a", 10}}));
  gather();
  EXPECT_EQ(counts(), (Scopes{{"a", 10}}));
  EXPECT_EQ(files(), 1U);
}

// Somebody holds the file that a gathering left behind while the next one is at work.
TEST_F(CounterTotalsTest, a_file_that_was_gathered_and_is_held_stays_known) {
  (void)process("a", 10);
  const std::string path = only_file();
  gather_and_leave(path);
  const auto held = hold(path);
  (void)process("b", 1);
  gather();
  EXPECT_EQ(counts(), (Scopes{{"a", 10}, {"b", 1}}));
  ASSERT_TRUE(zero().is_ok());
  EXPECT_TRUE(counts().empty());
  (void)process("b", 2);
  gather();
  EXPECT_EQ(counts(), (Scopes{{"b", 2}}));
}

TEST_F(CounterTotalsTest, a_file_that_is_being_gathered_is_of_no_process_that_runs) {
  (void)process("a", 10);
  const auto held = hold(only_file());
  EXPECT_EQ(counts(), (Scopes{{"a", 10}}));
  EXPECT_EQ(read().live_processes, 0U);
}

TEST_F(CounterTotalsTest, set_to_zero_everything_counts_from_there_on) {
  auto running = process("a", 1);
  (void)process("a", 10);
  gather();
  (void)process("b", 100);
  const std::int64_t before_us = now_us();
  ASSERT_TRUE(zero().is_ok());
  EXPECT_TRUE(counts().empty());
  EXPECT_GE(read().since_us, before_us);
  (*running->slot_of("a", kSomeDay))[0] += 5;
  EXPECT_EQ(counts(), (Scopes{{"a", 5}}));
  running = nullptr;
  gather();
  EXPECT_EQ(counts(), (Scopes{{"a", 5}}));
  EXPECT_GE(read().since_us, before_us);
}

TEST_F(CounterTotalsTest, the_totals_stay_bounded_and_lose_no_count) {
  constexpr int kDays = 200;
  for (int day = 0; day < kDays; ++day) {
    auto file = CounterFile::create(directory_).value();
    for (std::size_t i = 0; i < kCounterSlots; ++i) {
      (*file->slot_of("scope " + std::to_string(i), kSomeDay + day))[0] += 1;
    }
  }
  gather();
  EXPECT_EQ(read_totals_file(directory_).value().days.size(), kMostCountedDays);
  std::int64_t sum = 0;
  for (const CountedDay& day : read().days) sum += day.counts[0];
  EXPECT_EQ(sum, kDays * static_cast<std::int64_t>(kCounterSlots));
}

TEST_F(CounterTotalsTest, totals_of_another_version_are_left_alone) {
  (void)process("a", 10);
  const std::string totals = directory_.counters_path() + "/totals";
  std::ofstream(totals) << "modcache counters 1\n";
  EXPECT_EQ(gather_counters(directory_, 1, 1000).code(), StatusCode::kUnsupportedVersion);
  EXPECT_EQ(zero().code(), StatusCode::kUnsupportedVersion);
  EXPECT_EQ(files(), 2U);
}

}  // namespace
}  // namespace modcache::store
