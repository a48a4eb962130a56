// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "remote/client.h"

namespace modcache::remote {
namespace {

using std::chrono::milliseconds;

// How long the breaker pauses from now on, within what a busy machine takes between two lines.
void expect_pause(Breaker& breaker, Breaker::Clock::time_point since, milliseconds pause) {
  const auto until = breaker.probe_at();
  EXPECT_GE(until, since + pause);
  EXPECT_LE(until, Breaker::Clock::now() + pause);
}

TEST(BreakerTest, it_begins_closed) { EXPECT_TRUE(Breaker().is_closed()); }

TEST(BreakerTest, the_first_failure_opens_it_and_later_ones_neither_open_nor_prolong_it) {
  Breaker breaker;
  const auto started = Breaker::Clock::now();
  EXPECT_TRUE(breaker.note_failure());
  EXPECT_FALSE(breaker.is_closed());
  const auto probe_at = breaker.probe_at();
  expect_pause(breaker, started, Breaker::kFirstPause);
  EXPECT_FALSE(breaker.note_failure());
  EXPECT_EQ(breaker.probe_at(), probe_at);
}

TEST(BreakerTest, each_failed_probe_doubles_the_pause_up_to_the_longest) {
  Breaker breaker;
  breaker.note_failure();
  milliseconds pause = Breaker::kFirstPause;
  for (int probes = 0; probes < 10; ++probes) {
    pause = std::min(pause * 2, Breaker::kLongestPause);
    const auto now = Breaker::Clock::now();
    breaker.note_failed_probe();
    EXPECT_FALSE(breaker.is_closed());
    expect_pause(breaker, now, pause);
  }
  EXPECT_EQ(pause, Breaker::kLongestPause);
}

TEST(BreakerTest, a_server_that_answered_begins_with_the_first_pause_again) {
  Breaker breaker;
  breaker.note_failure();
  for (int probes = 0; probes < 10; ++probes) breaker.note_failed_probe();
  breaker.close();
  EXPECT_TRUE(breaker.is_closed());
  breaker.note_success();
  const auto now = Breaker::Clock::now();
  EXPECT_TRUE(breaker.note_failure());
  expect_pause(breaker, now, Breaker::kFirstPause);
}

TEST(BreakerTest, a_server_that_answers_nothing_but_probes_is_left_alone_for_longer_and_longer) {
  Breaker breaker;
  milliseconds pause = Breaker::kFirstPause;
  for (int failures = 0; failures < 10; ++failures) {
    const auto now = Breaker::Clock::now();
    EXPECT_TRUE(breaker.note_failure());
    expect_pause(breaker, now, pause);
    pause = std::min(pause * 2, Breaker::kLongestPause);
    breaker.close();
  }
}

TEST(BreakerTest, of_many_threads_that_fail_at_once_exactly_one_opens_it) {
  Breaker breaker;
  std::atomic<int> opened{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] { opened += breaker.note_failure() ? 1 : 0; });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(opened, 1);
}

}  // namespace
}  // namespace modcache::remote
