// SPDX-License-Identifier: Apache-2.0
#include "base/process_wide.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "support/child_process.h"

namespace modcache {
namespace {

using testing::ChildProcess;

struct Names : ProcessWide<Names> {
  int count MODCACHE_GUARDED_BY(mutex) = 7;
};
struct Numbers : ProcessWide<Numbers> {
  Numbers() { ++made; }
  ~Numbers() { ++destroyed; }
  static inline std::atomic<int> made{0};
  static inline std::atomic<int> destroyed{0};
};

TEST(ProcessWideTest, is_one_for_each_type_and_made_at_its_first_use) {
  EXPECT_EQ(Numbers::made, 0);
  EXPECT_EQ(&Numbers::instance(), &Numbers::instance());
  EXPECT_EQ(Numbers::made, 1);
  MutexLock lock(Names::instance().mutex);
  EXPECT_EQ(Names::instance().count, 7);
}

TEST(ProcessWideTest, is_not_destroyed_at_the_end_of_the_process) {
  ChildProcess child([]() -> int {
    // Made first, hence destroyed last.
    static const struct AtExit {
      ~AtExit() { ::_exit(Numbers::destroyed == 0 ? 0 : 1); }
    } at_exit;
    (void)Numbers::instance();
    std::exit(2);
  });
  EXPECT_EQ(child.wait(), 0);
}

#if MODCACHE_CAN_FORK_WITH_THREADS
struct MadeSlowly : ProcessWide<MadeSlowly> {
  MadeSlowly() {
    is_being_made = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  static inline std::atomic<bool> is_being_made{false};
};

TEST(ProcessWideTest, gives_a_child_that_is_forked_while_it_is_made_a_whole_one) {
  std::thread maker([] { (void)MadeSlowly::instance(); });
  while (!MadeSlowly::is_being_made) std::this_thread::yield();
  ChildProcess child([] {
    ::alarm(10);  // rather than to wait for ever
    return MadeSlowly::instance().mutex.try_lock() ? 0 : 1;
  });
  EXPECT_EQ(child.wait(), 0);
  maker.join();
}

TEST(ProcessWideTest, gives_a_forked_child_a_free_mutex_while_other_threads_use_it) {
  std::atomic<bool> is_over{false};
  std::thread user([&] {
    while (!is_over) MutexLock lock(Names::instance().mutex);
  });
  for (int i = 0; i < 20; ++i) {
    ChildProcess child([] {
      if (!Names::instance().mutex.try_lock()) return 1;
      Names::instance().mutex.unlock();
      return 0;
    });
    EXPECT_EQ(child.wait(), 0);
  }
  is_over = true;
  user.join();
}
#endif

}  // namespace
}  // namespace modcache
