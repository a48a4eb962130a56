// SPDX-License-Identifier: Apache-2.0
#include "cache/remote_worth.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace modcache::cache {
namespace {

constexpr std::int64_t kRemoteMsUs = 1000;
// A user may lose so much by a server that is of no use to him.
constexpr double kMostLoss = 0.05;

// Calls of a module by way of a server, in simulated time.
class RemoteWorthTest : public ::testing::Test {
 protected:
  struct Server {
    std::int64_t round_trip_us = 0;
    double found_share = 0;
    std::int64_t row_us = 0;  // that each row of a question adds
    bool is_measured = true;  // in the background, once it was asked
  };

  // One call; whether the server was asked.
  bool call(const Server& server, std::int64_t run_us, std::size_t rows = 1) {
    const auto count = static_cast<std::int64_t>(rows);
    const bool is_known = server.is_measured && was_asked_;
    const bool is_asked = worth_.is_worth_asking(scope_, rows, is_known ? server.round_trip_us : 0);
    std::size_t found = 0;
    if (is_asked) {
      was_asked_ = true;
      found = static_cast<std::size_t>(server.found_share * static_cast<double>(rows) + owed_);
      owed_ += server.found_share * static_cast<double>(rows) - static_cast<double>(found);
      const std::int64_t took_us = server.round_trip_us + count * server.row_us + jitter_us();
      worth_.note_question(scope_, rows, found, took_us, is_known ? server.round_trip_us : 0);
      if (found > 0) worth_.note_runs(scope_, run_us, 0);
      spent_us_ += took_us;
    }
    if (found < rows) worth_.note_runs(scope_, run_us, rows - found);
    spent_us_ += static_cast<std::int64_t>(rows - found) * run_us;
    without_us_ += count * run_us;
    return is_asked;
  }
  int calls(int many, const Server& server, std::int64_t run_us, std::size_t rows = 1) {
    int asked = 0;
    for (int i = 0; i < many; ++i) asked += call(server, run_us, rows) ? 1 : 0;
    return asked;
  }
  double loss() const {
    return static_cast<double>(spent_us_ - without_us_) / static_cast<double>(without_us_);
  }
  std::int64_t jitter_us() {
    random_ = random_ * 6364136223846793005U + 1442695040888963407U;
    return most_jitter_us_ == 0 ? 0 : static_cast<std::int64_t>(random_ >> 33) % most_jitter_us_;
  }

  RemoteWorth worth_;
  std::string scope_ = "encoder@1";
  bool was_asked_ = false;
  double owed_ = 0;  // the part of a row that was found
  std::int64_t most_jitter_us_ = 0;
  std::uint64_t random_ = 1;
  std::int64_t spent_us_ = 0;
  std::int64_t without_us_ = 0;
};

TEST_F(RemoteWorthTest, a_server_ten_times_slower_than_the_module_costs_next_to_nothing) {
  for (const double found_share : {0.0, 0.5, 1.0}) {
    for (const bool is_measured : {false, true}) {
      scope_ += "'";
      spent_us_ = without_us_ = 0;
      calls(2000, {50 * kRemoteMsUs, found_share, 0, is_measured}, 5 * kRemoteMsUs);
      EXPECT_LE(loss(), kMostLoss) << found_share << is_measured;
    }
  }
}

TEST_F(RemoteWorthTest, nor_does_it_in_batches_or_where_its_times_vary) {
  most_jitter_us_ = 20 * kRemoteMsUs;
  for (const std::size_t rows : {std::size_t{1}, std::size_t{4}, std::size_t{5}, std::size_t{32}}) {
    scope_ += "'";
    spent_us_ = without_us_ = 0;
    calls(2000, {50 * kRemoteMsUs, 0.0, 100, true}, 5 * kRemoteMsUs / static_cast<int>(rows), rows);
    EXPECT_LE(loss(), kMostLoss) << rows;
  }
}

// The first run of a process compiles kernels and the like.
TEST_F(RemoteWorthTest, nor_after_a_first_run_that_took_a_hundred_times_as_long) {
  calls(1, {50 * kRemoteMsUs}, 500 * kRemoteMsUs);
  spent_us_ = without_us_ = 0;
  calls(2000, {50 * kRemoteMsUs}, 5 * kRemoteMsUs);
  EXPECT_LE(loss(), kMostLoss);
}

TEST_F(RemoteWorthTest, a_server_that_finds_nothing_is_asked_within_the_exploring_share) {
  for (const std::int64_t round_trip_ms : {2, 5, 15, 19}) {
    scope_ += "'";
    spent_us_ = without_us_ = 0;
    const int asked = calls(2000, {round_trip_ms * kRemoteMsUs}, 20 * kRemoteMsUs);
    EXPECT_LE(loss(), kMostLoss) << round_trip_ms;
    EXPECT_GE(asked, 2000 / 100) << "but it is asked";
  }
}

TEST_F(RemoteWorthTest, large_values_over_a_slow_line_cost_no_more) {
  calls(2000, {1 * kRemoteMsUs, 0.2, 50 * kRemoteMsUs, true}, 5 * kRemoteMsUs, 32);
  EXPECT_LE(loss(), kMostLoss);
}

TEST_F(RemoteWorthTest, a_fast_server_is_always_asked_about_a_slow_module) {
  EXPECT_EQ(calls(500, {300, 0.0, 0, true}, 50 * kRemoteMsUs), 500) << "also while it has nothing";
  EXPECT_EQ(calls(500, {300, 1.0, 20, true}, 50 * kRemoteMsUs, 32), 500);
  EXPECT_LT(loss(), -0.3);
}

TEST_F(RemoteWorthTest, hits_that_save_more_than_they_cost_keep_it_asked) {
  EXPECT_EQ(calls(2000, {5 * kRemoteMsUs, 0.5, 0, true}, 20 * kRemoteMsUs), 2000);
  EXPECT_LT(loss(), -0.2);
}

TEST_F(RemoteWorthTest, a_server_that_begins_to_find_is_noticed) {
  calls(2000, {10 * kRemoteMsUs}, 20 * kRemoteMsUs);
  const Server filled{10 * kRemoteMsUs, 1.0, 0, true};
  calls(500, filled, 20 * kRemoteMsUs);
  EXPECT_EQ(calls(500, filled, 20 * kRemoteMsUs), 500);
}

TEST_F(RemoteWorthTest, a_server_that_gets_fast_is_asked_again) {
  for (const std::size_t rows : {std::size_t{1}, std::size_t{32}}) {
    scope_ += "'";
    const std::int64_t run_us = 5 * kRemoteMsUs / static_cast<int>(rows);
    EXPECT_LE(calls(1000, {50 * kRemoteMsUs, 1.0, 0, true}, run_us, rows), 50);
    const Server fast{1 * kRemoteMsUs, 1.0, 0, true};
    calls(2000, fast, run_us, rows);
    EXPECT_EQ(calls(500, fast, run_us, rows), 500) << rows;
  }
}

// A call for few keys and one for many were late once, as while a node is replaced.
TEST_F(RemoteWorthTest, a_server_that_was_late_once_is_asked_again_soon) {
  const Server well{kRemoteMsUs, 1.0, 0, true};
  for (const std::size_t late_rows : {std::size_t{1}, std::size_t{6}}) {
    calls(100, well, 12 * kRemoteMsUs, late_rows);
    worth_.note_question(scope_, late_rows, 0, 600 * kRemoteMsUs, kRemoteMsUs);
    int asked = 0;
    for (int i = 0; i < 1000; ++i) {
      for (const std::size_t rows : {1, 3, 6}) asked += call(well, 3 * kRemoteMsUs, rows) ? 1 : 0;
    }
    EXPECT_GE(asked, 1000) << late_rows;
  }
}

TEST_F(RemoteWorthTest, values_that_take_longer_than_runs_are_passed_by_though_a_ping_is_fast) {
  int asked = 0;
  for (int i = 0; i < 2000; ++i) {
    if (worth_.is_worth_asking(scope_, 1, 200)) {
      ++asked;
      worth_.note_question(scope_, 1, 1, 300 * kRemoteMsUs, 200);
    }
    worth_.note_runs(scope_, 5 * kRemoteMsUs, 1);
  }
  EXPECT_LE(asked, 5) << "2,000 runs are 10 s, of which 2 % are for exploring";
}

TEST_F(RemoteWorthTest, where_no_run_is_known_the_server_is_asked) {
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(worth_.is_worth_asking(scope_, 1, 5 * kRemoteMsUs));
    worth_.note_question(scope_, 1, 0, 5 * kRemoteMsUs, 5 * kRemoteMsUs);
  }
  for (int i = 0; i < 5; ++i) worth_.note_runs(scope_, 100 * kRemoteMsUs, 1);
  EXPECT_TRUE(worth_.is_worth_asking(scope_, 1, 5 * kRemoteMsUs)) << "now runs are known";
}

TEST_F(RemoteWorthTest, the_run_time_of_an_entry_that_was_found_counts) {
  worth_.note_question(scope_, 1, 1, 5 * kRemoteMsUs, 5 * kRemoteMsUs);
  worth_.note_runs(scope_, 1 * kRemoteMsUs, 0);
  EXPECT_FALSE(worth_.is_worth_asking(scope_, 1, 5 * kRemoteMsUs));
  scope_ = "another";
  worth_.note_question(scope_, 1, 1, 5 * kRemoteMsUs, 5 * kRemoteMsUs);
  worth_.note_runs(scope_, 10 * kRemoteMsUs, 0);
  EXPECT_TRUE(worth_.is_worth_asking(scope_, 1, 5 * kRemoteMsUs));
}

TEST_F(RemoteWorthTest, each_scope_is_judged_by_itself) {
  calls(100, {50 * kRemoteMsUs}, 5 * kRemoteMsUs);
  EXPECT_FALSE(worth_.is_worth_asking(scope_, 1, 50 * kRemoteMsUs));
  scope_ = "encoder@2";
  EXPECT_TRUE(worth_.is_worth_asking(scope_, 1, 50 * kRemoteMsUs));
}

TEST_F(RemoteWorthTest, what_was_not_used_for_exploring_is_saved_up_within_bounds) {
  calls(20, {15 * kRemoteMsUs}, 20 * kRemoteMsUs);
  worth_.note_runs(scope_, 20 * kRemoteMsUs, 1'000'000'000);
  int asked = 0;
  while (worth_.is_worth_asking(scope_, 1, 15 * kRemoteMsUs) && asked < 100'000) {
    ++asked;
    worth_.note_question(scope_, 1, 0, 15 * kRemoteMsUs, 15 * kRemoteMsUs);
  }
  EXPECT_GT(asked, 0);
  EXPECT_LE(asked * 15, 1100) << "a second, all in all";
}

TEST_F(RemoteWorthTest, extreme_times_and_counts_do_no_harm) {
  constexpr std::int64_t kDay = std::int64_t{86'400} * 1'000'000;
  for (const std::int64_t time_us : {std::int64_t{0}, std::int64_t{1}, kDay}) {
    for (const std::size_t rows : {std::size_t{1}, std::size_t{5}, std::size_t{100'000}}) {
      worth_.note_question(scope_, rows, rows, time_us, 0);
      worth_.note_question(scope_, rows, 0, time_us, time_us);
      worth_.note_runs(scope_, time_us, rows);
      (void)worth_.is_worth_asking(scope_, rows, time_us);
    }
  }
}

TEST_F(RemoteWorthTest, threads_may_ask_and_note_at_once) {
  std::atomic<int> asked{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([this, &asked] {
      for (int i = 0; i < 1000; ++i) {
        if (!worth_.is_worth_asking(scope_, 2, 300)) continue;
        ++asked;
        worth_.note_question(scope_, 2, 1, 300, 300);
        worth_.note_runs(scope_, 50 * kRemoteMsUs, 1);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(asked, 8000);
}

}  // namespace
}  // namespace modcache::cache
