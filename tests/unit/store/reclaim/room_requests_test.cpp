// SPDX-License-Identifier: Apache-2.0
#include "store/reclaim/room_requests.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "fs/posix_file_system.h"
#include "store/directory/directory.h"
#include "support/temporary_directory.h"

namespace modcache::store {
namespace {

constexpr std::uint64_t kBudgetBytes = 1 << 20;
constexpr std::chrono::seconds kLong{60};
constexpr std::chrono::milliseconds kMoment{10};

class RoomRequestsTest : public ::testing::Test {
 protected:
  testing::TemporaryDirectory path_;
  const Directory directory_{fs::posix_file_system(), path_.path()};
  DiskBudget budget_{directory_, kBudgetBytes};
  RoomRequests requests_{budget_, 0};
};

TEST_F(RoomRequestsTest, what_several_ask_for_is_one_request) {
  requests_.ask(10, false);
  requests_.ask(5, true);
  RoomRequests::Asked asked = requests_.wait_until_asked(false);
  EXPECT_TRUE(asked.is_asked);
  EXPECT_TRUE(asked.may_evict);
  EXPECT_EQ(asked.room_bytes, 10);
  asked = requests_.wait_until_asked(true);
  EXPECT_FALSE(asked.is_asked);
  EXPECT_FALSE(asked.may_evict);
  EXPECT_EQ(asked.room_bytes, 0);
}

TEST_F(RoomRequestsTest, nobody_waits_where_there_is_room_or_no_time) {
  requests_.wait(1, false, RoomRequests::Clock::now() + kLong);
  requests_.wait(2 * kBudgetBytes, true, RoomRequests::Clock::now());
  EXPECT_EQ(requests_.wait_until_asked(false).room_bytes, 2 * kBudgetBytes);
}

// Dead space is all that such a pass takes, and another pass would find no more.
TEST_F(RoomRequestsTest, a_wait_without_eviction_ends_with_a_pass) {
  auto waiting = std::async(std::launch::async, [&] {
    requests_.wait(2 * kBudgetBytes, false, RoomRequests::Clock::now() + kLong);
  });
  EXPECT_FALSE(requests_.wait_until_asked(false).may_evict);
  while (waiting.wait_for(kMoment) != std::future_status::ready) requests_.finish_pass();
}

TEST_F(RoomRequestsTest, a_wait_with_eviction_asks_again_until_nothing_more_can_leave) {
  auto waiting = std::async(std::launch::async, [&] {
    requests_.wait(2 * kBudgetBytes, true, RoomRequests::Clock::now() + kLong);
  });
  for (int pass = 0; pass < 3; ++pass) {
    const RoomRequests::Asked asked = requests_.wait_until_asked(false);
    EXPECT_TRUE(asked.may_evict);
    EXPECT_EQ(asked.room_bytes, 2 * kBudgetBytes);
    requests_.finish_pass();
  }
  EXPECT_FALSE(requests_.is_exhausted());
  while (waiting.wait_for(kMoment) != std::future_status::ready) {
    requests_.set_exhausted();
    requests_.finish_pass();
  }
  EXPECT_TRUE(requests_.is_exhausted());
}

TEST_F(RoomRequestsTest, looks_for_dead_space_once_for_each_count_of_removals) {
  requests_.ask_if_dead_space(3);
  EXPECT_TRUE(requests_.wait_until_asked(true).is_asked);
  requests_.ask_if_dead_space(3);
  EXPECT_FALSE(requests_.wait_until_asked(true).is_asked);
  requests_.ask_if_dead_space(4);
  EXPECT_TRUE(requests_.wait_until_asked(true).is_asked);
}

TEST_F(RoomRequestsTest, stopping_wakes_the_thread_that_waits_to_be_asked) {
  std::thread reclaiming([&] { EXPECT_FALSE(requests_.wait_until_asked(false).is_asked); });
  requests_.stop();
  reclaiming.join();
  EXPECT_TRUE(requests_.is_stopping());
}

}  // namespace
}  // namespace modcache::store
