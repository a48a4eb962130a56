// SPDX-License-Identifier: Apache-2.0
#include "fs/thread_state.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

namespace modcache::fs {
namespace {

pid_t id_of_this_thread() { return static_cast<pid_t>(::syscall(SYS_gettid)); }

TEST(ThreadStateTest, a_thread_that_waits_for_a_condition_is_in_a_lock) {
  std::promise<void> end;
  std::atomic<pid_t> waiting_id{0};
  std::thread waiting([&, ended = end.get_future()] {
    waiting_id = id_of_this_thread();
    ended.wait();
  });
  bool is_seen = false;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!is_seen && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    is_seen = is_in_lock(waiting_id);
  }
  end.set_value();
  waiting.join();
  if (::access("/proc/self/syscall", R_OK) != 0) GTEST_SKIP() << "it cannot be told here";
  EXPECT_TRUE(is_seen);
  EXPECT_FALSE(is_in_lock(waiting_id)) << "the thread has ended";
}

TEST(ThreadStateTest, a_thread_that_runs_is_in_no_lock) {
  EXPECT_FALSE(is_in_lock(id_of_this_thread()));
}

}  // namespace
}  // namespace modcache::fs
