// SPDX-License-Identifier: Apache-2.0
#include "store/queue/write_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "support/store_fixture.h"

namespace modcache::store {
namespace {

using testing::context_named;
using Clock = WriteQueue::Clock;
using std::chrono::milliseconds;

class WriteQueueTest : public ::testing::Test {
 protected:
  QueuedPutPtr make(const std::string& key, Sequence sequence, std::uint64_t size_bytes = 10) {
    auto put = std::make_shared<QueuedPut>();
    put->context = context_;
    put->key = key;
    put->address = address_of(context_->digest, key);
    put->sequence = sequence;
    put->begun_at = sequence;
    put->size_bytes = size_bytes;
    return put;
  }
  Status push(const QueuedPutPtr& put) { return queue_.push(put, Clock::now()).status(); }
  std::vector<QueuedPutPtr> take() { return queue_.take(milliseconds(0), Clock::now()); }
  Sequence found(const std::string& key) {
    const auto found = queue_.find_all(batch_of({*context_, key}));
    return found.empty() || found[0] == nullptr ? 0 : found[0]->sequence;
  }

  const std::shared_ptr<const Context> context_ =
      std::make_shared<const Context>(context_named("scope"));
  WriteQueue queue_{100};
};

TEST_F(WriteQueueTest, gives_what_was_pushed_in_order) {
  ASSERT_TRUE(push(make("a", 1)).is_ok());
  ASSERT_TRUE(push(make("b", 2)).is_ok());
  const auto batch = take();
  ASSERT_EQ(batch.size(), 2u);
  EXPECT_EQ(batch[0]->key, "a");
  EXPECT_EQ(batch[1]->key, "b");
  EXPECT_TRUE(take().empty());
}

TEST_F(WriteQueueTest, finds_an_entry_until_it_is_finished) {
  ASSERT_TRUE(push(make("a", 1)).is_ok());
  EXPECT_EQ(found("a"), 1u);
  const auto batch = take();
  EXPECT_EQ(found("a"), 1u);
  queue_.finish(batch, Status::ok());
  EXPECT_EQ(found("a"), 0u);
  EXPECT_EQ(queue_.size_bytes(), 0u);
}

TEST_F(WriteQueueTest, finds_the_later_of_two_whichever_came_first) {
  ASSERT_TRUE(push(make("a", 2)).is_ok());
  ASSERT_TRUE(push(make("a", 1)).is_ok());
  EXPECT_EQ(found("a"), 2u);
  const auto first = take();
  ASSERT_TRUE(push(make("a", 3)).is_ok());
  queue_.finish(first, Status::ok());
  EXPECT_EQ(found("a"), 3u);
}

TEST_F(WriteQueueTest, refuses_more_than_its_limit_but_takes_one_large_entry_alone) {
  ASSERT_TRUE(push(make("large", 1, 1000)).is_ok());
  EXPECT_EQ(push(make("b", 2)).code(), StatusCode::kBusy);
  queue_.finish(take(), Status::ok());
  EXPECT_TRUE(push(make("b", 2, 60)).is_ok());
  EXPECT_EQ(push(make("c", 3, 60)).code(), StatusCode::kBusy);
}

TEST_F(WriteQueueTest, lets_a_put_wait_for_room) {
  ASSERT_TRUE(push(make("a", 1, 100)).is_ok());
  std::thread writer([this] { queue_.finish(take(), Status::ok()); });
  EXPECT_TRUE(queue_.push(make("b", 2, 100), Clock::now() + std::chrono::seconds(30)).is_ok());
  writer.join();
}

TEST_F(WriteQueueTest, removes_what_a_clear_covers_also_while_it_is_written) {
  ASSERT_TRUE(push(make("a1", 1)).is_ok());
  const auto being_written = take();
  ASSERT_TRUE(push(make("a2", 2)).is_ok());
  ASSERT_TRUE(push(make("b", 3)).is_ok());
  ASSERT_TRUE(push(make("a3", 11)).is_ok());
  EXPECT_EQ(queue_.remove({{"scope", "a"}, 10}).size(), 2u);
  EXPECT_EQ(found("a1"), 0u);
  EXPECT_EQ(found("a2"), 0u);
  EXPECT_EQ(found("b"), 3u);
  EXPECT_EQ(found("a3"), 11u);
  queue_.finish(being_written, Status::ok());
  queue_.finish(take(), Status::ok());
  EXPECT_EQ(queue_.size_bytes(), 0u);
  EXPECT_TRUE(queue_.wait_for(queue_.last_position(), Clock::now()).is_ok());
}

TEST_F(WriteQueueTest, tells_a_waiter_of_the_first_failure_once) {
  ASSERT_TRUE(push(make("a", 1)).is_ok());
  EXPECT_EQ(queue_.wait_for(1, Clock::now()).code(), StatusCode::kBusy);
  queue_.finish(take(), Status::no_space("full"));
  EXPECT_EQ(queue_.wait_for(1, Clock::now()).code(), StatusCode::kNoSpace);
  EXPECT_TRUE(queue_.wait_for(1, Clock::now()).is_ok());
}

TEST_F(WriteQueueTest, leaves_out_of_a_batch_what_was_removed_since_it_was_taken) {
  ASSERT_TRUE(push(make("a", 1)).is_ok());
  ASSERT_TRUE(push(make("b", 2)).is_ok());
  const auto batch = take();
  EXPECT_EQ(queue_.without_removed(batch).size(), 2u);
  (void)queue_.remove({{"scope", "a"}, 10, context_->digest});
  auto wanted = queue_.without_removed(batch);
  ASSERT_EQ(wanted.size(), 1u);
  EXPECT_EQ(wanted[0]->key, "b");
  queue_.put_back(batch);
  EXPECT_EQ(queue_.without_removed(take()).size(), 1u) << "also when it is written again";
}

// What others finish or remove before is no answer to who waits.
TEST_F(WriteQueueTest, lets_a_waiter_wait_for_its_own) {
  ASSERT_TRUE(push(make("a", 1)).is_ok());
  const auto first = queue_.last_position();
  const auto being_written = take();
  for (Sequence i = 2; i < 6; ++i) ASSERT_TRUE(push(make("b", i)).is_ok());
  (void)queue_.remove({{"scope", "b"}, 10});
  EXPECT_EQ(queue_.wait_for(first, Clock::now()).code(), StatusCode::kBusy);
  queue_.finish(being_written, Status::ok());
  EXPECT_TRUE(queue_.wait_for(first, Clock::now()).is_ok());
  EXPECT_FALSE(queue_.is_waited_for());
}

TEST_F(WriteQueueTest, tells_all_who_wait_of_a_failure) {
  ASSERT_TRUE(push(make("a", 1)).is_ok());
  ASSERT_TRUE(push(make("b", 2)).is_ok());
  const auto wait = [this] {
    EXPECT_EQ(queue_.wait_for(2, Clock::now() + std::chrono::seconds(30)).code(),
              StatusCode::kNoSpace);
  };
  std::thread one(wait);
  std::thread other(wait);
  while (queue_.waiters() < 2) std::this_thread::yield();
  queue_.finish(take(), Status::no_space("full"));
  one.join();
  other.join();
  EXPECT_TRUE(queue_.wait_for(2, Clock::now()).is_ok());
}

TEST_F(WriteQueueTest, keeps_a_failure_for_who_put_what_failed) {
  ASSERT_TRUE(push(make("a", 1)).is_ok());
  queue_.finish(take(), Status::ok());
  ASSERT_TRUE(push(make("b", 2)).is_ok());
  queue_.finish(take(), Status::no_space("full"));
  EXPECT_TRUE(queue_.wait_for(1, Clock::now()).is_ok());
  EXPECT_EQ(queue_.wait_for(2, Clock::now()).code(), StatusCode::kNoSpace);
}

TEST_F(WriteQueueTest, gives_a_batch_again_that_was_put_back) {
  ASSERT_TRUE(push(make("a", 1)).is_ok());
  ASSERT_TRUE(push(make("b", 2)).is_ok());
  queue_.put_back(take());
  EXPECT_EQ(found("a"), 1u);
  const auto batch = take();
  ASSERT_EQ(batch.size(), 2u);
  EXPECT_EQ(batch[0]->key, "a");
}

TEST_F(WriteQueueTest, gathers_until_somebody_wants_it_or_it_stops) {
  ASSERT_TRUE(push(make("a", 1)).is_ok());
  std::thread waiter(
      [this] { EXPECT_TRUE(queue_.wait_for(1, Clock::now() + std::chrono::seconds(30)).is_ok()); });
  queue_.finish(queue_.take(std::chrono::hours(1), Clock::now()), Status::ok());
  waiter.join();
  ASSERT_TRUE(push(make("b", 2)).is_ok());
  queue_.stop();
  EXPECT_EQ(queue_.take(std::chrono::hours(1), Clock::now() + std::chrono::hours(1)).size(), 1u);
  EXPECT_TRUE(queue_.take(std::chrono::hours(1), Clock::now() + std::chrono::hours(1)).empty());
}

TEST_F(WriteQueueTest, takes_many_as_far_as_there_is_room) {
  std::size_t pushed = 0;
  const std::vector<QueuedPutPtr> puts = {make("a", 1, 60), make("b", 2, 30), make("c", 3, 30)};
  EXPECT_EQ(queue_.push_all(puts, Clock::now(), pushed).status().code(), StatusCode::kBusy);
  EXPECT_EQ(pushed, 2u);
  EXPECT_EQ(queue_.size_bytes(), 90u);
  EXPECT_EQ(found("b"), 2u);
  EXPECT_EQ(found("c"), 0u);
}

TEST_F(WriteQueueTest, finds_many_of_one_context) {
  const std::vector<std::string_view> keys = {"a", "b", "c"};
  std::vector<Digest128> addresses;
  for (const auto key : keys) addresses.push_back(address_of(context_->digest, key));
  EXPECT_TRUE(queue_.find_all({*context_, keys, addresses}).empty());
  ASSERT_TRUE(push(make("a", 1)).is_ok());
  ASSERT_TRUE(push(make("c", 2)).is_ok());
  ASSERT_TRUE(push(make("c", 3)).is_ok());
  const auto found = queue_.find_all({*context_, keys, addresses});
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0]->sequence, 1u);
  EXPECT_EQ(found[1], nullptr);
  EXPECT_EQ(found[2]->sequence, 3u);
  // Addresses are hashes, so keys are compared.
  EXPECT_EQ(queue_.find_all(batch_of({*context_, "b", addresses[0]}))[0], nullptr);
  queue_.finish(take(), Status::ok());
  EXPECT_TRUE(queue_.find_all({*context_, keys, addresses}).empty());
}

// What is in the queue would be lost with the process: at the pace of the disk it holds no more
// than can be written in a while.
TEST_F(WriteQueueTest, holds_callers_back_while_the_disk_is_slow) {
  constexpr std::uint64_t kMegabyte = 1 << 20;
  WriteQueue queue(64 * kMegabyte);
  const auto later = Clock::now() + std::chrono::seconds(10);
  Sequence sequence = 0;
  // 4 MB in 100 ms are 2 MB in the 50 ms that an entry may wait.
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(queue.push(make("k", ++sequence, 4 * kMegabyte), later).is_ok());
    const auto batch = queue.take(milliseconds(0), Clock::now());
    queue.begin_write();
    std::this_thread::sleep_for(milliseconds(100));
    queue.finish(batch, Status::ok());
  }
  ASSERT_TRUE(queue.push(make("k", ++sequence, kMegabyte), later).is_ok());
  const auto before = Clock::now();
  ASSERT_TRUE(queue.push(make("k", ++sequence, 8 * kMegabyte), later).is_ok());
  const auto waited = Clock::now() - before;
  EXPECT_GE(waited, WriteQueue::kMostAge);
  // A stopped disk does not block callers for ever; `later` is 10 s away.
  EXPECT_LT(waited, std::chrono::seconds(8));
}

}  // namespace
}  // namespace modcache::store
