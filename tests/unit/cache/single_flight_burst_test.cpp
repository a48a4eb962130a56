// SPDX-License-Identifier: Apache-2.0
//
// Many threads that ask for one new key at once, as requests of a server do: how often its module
// runs, how many run at a time, and how long the last one waits.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "cache/single_flight.h"

namespace modcache::cache {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr int kThreads = 200;
constexpr SingleFlight::Duration kLongPatience = std::chrono::seconds(30);
const Digest128 kBurstKey{1, 2};

// A key without a value, its module, and the way of a call.
class Burst {
 public:
  // Runs the module, which is told how many runs began before. False: it raised.
  using Run = std::function<bool(int number)>;

  explicit Burst(SingleFlight::Duration patience) : patience_(patience) {}

  // Returns when each of the threads has a value, or has seen its own run raise.
  void ask(int threads, const Run& run) {
    std::promise<void> all_are_there;
    const auto begin = all_are_there.get_future().share();
    std::vector<std::thread> asking;
    asking.reserve(static_cast<std::size_t>(threads));
    for (int t = 0; t < threads; ++t) {
      asking.emplace_back([&] {
        begin.wait();
        ask_once(run);
      });
    }
    const auto started = Clock::now();
    all_are_there.set_value();
    for (auto& thread : asking) thread.join();
    took = Clock::now() - started;
  }

  void ask_once(const Run& run) {
    while (true) {
      if (is_stored_) {
        ++hits;
        return;
      }
      std::vector<bool> is_led;
      SingleFlight::Lead lead = flights_.try_enter_all(std::vector{kBurstKey}, is_led);
      if (!lead.is_held()) {
        auto waited = flights_.wait_all(std::vector{kBurstKey}, patience_);
        if (waited.look_again) continue;
        lead = std::move(waited.lead);
      } else if (is_stored_) {  // a run may have ended before this thread got the lead
        continue;
      }
      return run_once(run, lead);
    }
  }

  std::atomic<int> runs{0};
  std::atomic<int> hits{0};
  std::atomic<int> failures{0};
  std::atomic<int> most_at_once{0};
  Clock::duration took{};

 private:
  void run_once(const Run& run, SingleFlight::Lead& lead) {
    const int at_once = ++running_;
    int most = most_at_once;
    while (most < at_once && !most_at_once.compare_exchange_weak(most, at_once)) {
    }
    const bool has_value = run(runs++);
    --running_;
    if (!has_value) {
      ++failures;
      return;
    }
    is_stored_ = true;
    lead.stored();
  }

  const SingleFlight::Duration patience_;
  SingleFlight flights_;
  std::atomic<bool> is_stored_{false};
  std::atomic<int> running_{0};
};

void sleep_for(milliseconds time) { std::this_thread::sleep_for(time); }

TEST(SingleFlightBurstTest, two_hundred_threads_run_a_new_key_once) {
  Burst burst(kLongPatience);
  burst.ask(kThreads, [](int) {
    sleep_for(milliseconds(100));
    return true;
  });
  EXPECT_EQ(burst.runs, 1);
  EXPECT_EQ(burst.hits, kThreads - 1);
}

TEST(SingleFlightBurstTest, one_that_fails_the_first_time_runs_twice) {
  Burst burst(kLongPatience);
  burst.ask(kThreads, [](int number) {
    sleep_for(milliseconds(100));
    return number > 0;
  });
  EXPECT_EQ(burst.runs, 2);
  EXPECT_EQ(burst.failures, 1) << "the request whose own run raised";
  EXPECT_EQ(burst.hits, kThreads - 2);
}

// Each request fails as the model does: neither all of them at once, nor one after the other.
TEST(SingleFlightBurstTest, one_that_always_fails_fails_for_each_within_a_few_times_its_run) {
  constexpr milliseconds kRun{100};
  Burst burst(kLongPatience);
  burst.ask(kThreads, [&](int) {
    sleep_for(kRun);
    return false;
  });
  EXPECT_EQ(burst.runs, kThreads);
  EXPECT_EQ(burst.failures, kThreads);
  EXPECT_LE(burst.most_at_once, kThreads / 2);
  EXPECT_GE(burst.took, 9 * kRun);
  EXPECT_LT(burst.took, 60 * kRun) << "one after the other they take 200";
}

// The patience is so long that the run which it lets begin also ends within it, on a busy machine,
// too.
TEST(SingleFlightBurstTest, one_that_hangs_holds_the_others_up_for_their_patience_alone) {
  constexpr milliseconds kPatience{3'000};
  std::atomic<bool> is_over{false};
  Burst burst(kPatience);
  std::atomic<int> answered_meanwhile{0};
  std::thread watching([&] {
    while (burst.hits + 1 < kThreads - 1) std::this_thread::sleep_for(milliseconds(1));
    answered_meanwhile = burst.hits + 1;
    is_over = true;
  });
  burst.ask(kThreads, [&](int number) {
    while (number == 0 && !is_over) sleep_for(milliseconds(1));
    return true;
  });
  watching.join();
  EXPECT_EQ(burst.runs, 2);
  EXPECT_EQ(answered_meanwhile, kThreads - 1) << "all but the one that hangs";
  EXPECT_GE(burst.took, kPatience);
}

TEST(SingleFlightBurstTest, where_all_runs_hang_more_and_more_waiters_run_and_in_the_end_all) {
  constexpr milliseconds kPatience{100};
  constexpr int kFew = 16;
  std::promise<void> end;
  const auto hangs = end.get_future().share();
  Burst burst(kPatience);
  std::vector<int> at_each_patience;
  std::thread watching([&] {
    while (burst.runs < kFew) {
      std::this_thread::sleep_for(milliseconds(5));
      const int now = burst.runs;
      if (at_each_patience.empty() || at_each_patience.back() != now) {
        at_each_patience.push_back(now);
      }
    }
    end.set_value();
  });
  burst.ask(kFew, [&](int) {
    hangs.wait();
    return true;
  });
  watching.join();
  EXPECT_EQ(burst.runs, kFew);
  EXPECT_GE(burst.took, 5 * kPatience) << "1, 1, 2, 4 and 8 more at a time";
  EXPECT_GE(at_each_patience.size(), 3u);
}

// A few threads that do all the work of a process, in turn.
class Pool {
 public:
  explicit Pool(int threads) {
    for (int t = 0; t < threads; ++t) threads_.emplace_back([this] { work(); });
  }
  ~Pool() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      has_ended_ = true;
    }
    changed_.notify_all();
    for (auto& thread : threads_) thread.join();
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  std::future<void> submit(std::function<void()> work) {
    auto task = std::make_shared<std::packaged_task<void()>>(std::move(work));
    auto done = task->get_future();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      tasks_.push_back([task] { (*task)(); });
    }
    changed_.notify_one();
    return done;
  }

 private:
  void work() {
    while (true) {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return has_ended_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool has_ended_ = false;
  std::vector<std::thread> threads_;
};

// The run hands a part of its work to the pool whose threads all wait for it.
TEST(SingleFlightBurstTest, a_run_that_needs_a_thread_of_those_who_wait_gets_one) {
  constexpr milliseconds kPatience{500};
  Burst burst(kPatience);
  Pool pool(4);
  const auto started = Clock::now();
  std::vector<std::future<void>> requests;
  for (int i = 0; i < 12; ++i) {
    requests.push_back(pool.submit([&] {
      burst.ask_once([&](int number) {
        // The first run is the one that the waiters keep waiting.
        if (number == 0) {
          sleep_for(milliseconds(50));
          pool.submit([] {}).wait();
        }
        return true;
      });
    }));
  }
  for (auto& request : requests) request.wait();
  EXPECT_EQ(burst.runs + burst.hits, 12);
  EXPECT_LE(burst.runs, 3);
  EXPECT_LT(Clock::now() - started, 10 * kPatience);
}

}  // namespace
}  // namespace modcache::cache
