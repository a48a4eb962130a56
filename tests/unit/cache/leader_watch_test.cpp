// SPDX-License-Identifier: Apache-2.0
#include "cache/leader_watch.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <thread>

namespace modcache::cache {
namespace {

using Clock = std::chrono::steady_clock;

// A thread that runs `work` until this goes, and a watch on it.
class Watched {
 public:
  explicit Watched(std::function<void()> work)
      : thread_([this, work = std::move(work)] {
          self_.set_value(watched_self());
          work();
        }),
        watch_(self_.get_future().get()) {}
  ~Watched() { thread_.join(); }

  void look() { was_blocked_ = was_blocked_ || watch_.is_blocked(); }
  bool was_blocked() const { return was_blocked_; }

 private:
  std::promise<WatchedThread> self_;
  std::thread thread_;
  LeaderWatch watch_;
  bool was_blocked_ = false;
};

// One test for all, since each takes as long as a leader may sleep.
TEST(LeaderWatchTest, only_a_thread_that_sleeps_in_a_lock_for_long_is_blocked) {
  if (::access("/proc/self/syscall", R_OK) != 0) GTEST_SKIP() << "it cannot be told here";
  constexpr auto kForLong = LeaderWatch::kLongestBlocked + 3 * LeaderWatch::kInterval;
  constexpr std::chrono::seconds kLongestLook{20};
  std::atomic<bool> is_over{false};
  std::promise<void> end;
  auto ended = end.get_future().share();
  Watched in_a_lock([ended] { ended.wait(); });
  Watched busy([&is_over] {
    while (!is_over) std::this_thread::yield();
  });
  Watched asleep([=] { std::this_thread::sleep_for(2 * kForLong); });
  Watched gone([] {});
  const auto started = Clock::now();
  // A busy machine may run the thread late, so it is looked at for longer where that is needed.
  const auto goes_on = [&] {
    const auto looked_for = Clock::now() - started;
    return looked_for < kForLong || (!in_a_lock.was_blocked() && looked_for < kLongestLook);
  };
  while (goes_on()) {
    for (Watched* one : {&in_a_lock, &busy, &asleep, &gone}) one->look();
    if (Clock::now() - started < LeaderWatch::kLongestBlocked / 2) {
      EXPECT_FALSE(in_a_lock.was_blocked()) << "an ordinary wait";
    }
    std::this_thread::sleep_for(LeaderWatch::kInterval);
  }
  EXPECT_TRUE(in_a_lock.was_blocked());
  EXPECT_FALSE(busy.was_blocked());
  EXPECT_FALSE(asleep.was_blocked());
  EXPECT_FALSE(gone.was_blocked());
  is_over = true;
  end.set_value();
}

}  // namespace
}  // namespace modcache::cache
