// SPDX-License-Identifier: Apache-2.0
#include "base/fork.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/mutex.h"
#include "support/child_process.h"

namespace modcache {
namespace {

using testing::ChildProcess;

TEST(ForkTest, counts_generations) {
  const auto generation = fork_generation();
  ChildProcess child([&] {
    if (fork_generation() != generation + 1) return 1;
    return ChildProcess([&] { return fork_generation() == generation + 2 ? 0 : 1; }).wait();
  });
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(fork_generation(), generation);
}

TEST(ForkTest, runs_actions_in_the_child_alone) {
  static std::atomic<int> runs{0};
  run_in_forked_child([] { ++runs; });
  EXPECT_EQ(ChildProcess([] { return runs.load(); }).wait(), 1);
  EXPECT_EQ(runs, 0);
}

// Without hold_across_fork the child would inherit a mutex locked by a thread that it does not
// have.
TEST(ForkTest, gives_the_child_free_locks_while_other_threads_use_them) {
  Mutex mutex;
  const auto registration = hold_across_fork(mutex);
  std::atomic<bool> is_over{false};
  std::thread user([&] {
    while (!is_over) MutexLock lock(mutex);
  });
  for (int i = 0; i < 50; ++i) {
    ChildProcess child([&] {
      if (!mutex.try_lock()) return 1;
      mutex.unlock();
      return 0;
    });
    EXPECT_EQ(child.wait(), 0);
  }
  is_over = true;
  user.join();
  stop_holding_across_fork(registration);
}

// Fork must depend neither on the order in which threads take the locks, nor on locks that they
// register meanwhile.
TEST(ForkTest, does_not_block_threads_that_hold_one_lock_and_want_another) {
  Mutex first;
  Mutex second;
  const auto first_registration = hold_across_fork(first);
  const auto second_registration = hold_across_fork(second);
  std::atomic<bool> is_over{false};
  std::thread user([&] {
    while (!is_over) {
      MutexLock outer(second);
      Mutex third;
      stop_holding_across_fork(hold_across_fork(third));
      MutexLock inner(first);
    }
  });
  for (int i = 0; i < 50; ++i) EXPECT_EQ(ChildProcess([] { return 0; }).wait(), 0);
  is_over = true;
  user.join();
  stop_holding_across_fork(first_registration);
  stop_holding_across_fork(second_registration);
}

}  // namespace
}  // namespace modcache
