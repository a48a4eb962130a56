// SPDX-License-Identifier: Apache-2.0
#include "store/write/writer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "support/store_parts.h"

namespace modcache::store {
namespace {

using testing::StoreParts;

class WriterTest : public testing::StorePartsTest {
 protected:
  WriterTest() { writer_->start(); }

  StoreParts parts_{options_};
  std::unique_ptr<Writer> writer_ =
      std::make_unique<Writer>(parts_.attached, parts_.committer, parts_.mirror, parts_.queue,
                               parts_.remover, parts_.reclaimer.room());
};

TEST_F(WriterTest, commits_what_is_queued) {
  parts_.push(parts_.queued(context_, "key", "value"));
  ASSERT_TRUE(writer_->wait_until_safe(parts_.queue.last_position()).is_ok());
  EXPECT_TRUE(parts_.has_row(context_, "key"));
  EXPECT_GT(parts_.attached.control().confirmed(), 0);
}

TEST_F(WriterTest, counts_a_removal_when_a_value_was_replaced) {
  const std::uint64_t removals = parts_.attached.removals();
  parts_.push(parts_.queued(context_, "key", "first"));
  ASSERT_TRUE(writer_->wait_until_safe(parts_.queue.last_position()).is_ok());
  EXPECT_EQ(parts_.attached.removals(), removals);
  const auto second = parts_.queued(context_, "key", "second");
  parts_.push(second);
  ASSERT_TRUE(writer_->wait_until_safe(parts_.queue.last_position()).is_ok());
  EXPECT_GT(parts_.attached.removals(), removals);
  EXPECT_EQ(parts_.attached.reader().find(context_.digest, "key").value().sequence,
            second->sequence);
}

TEST_F(WriterTest, commits_the_rest_when_it_ends) {
  for (const std::string key : {"0", "1", "2"}) parts_.push(parts_.queued(context_, key, "value"));
  writer_.reset();
  for (const std::string key : {"0", "1", "2"}) EXPECT_TRUE(parts_.has_row(context_, key)) << key;
}

TEST_F(WriterTest, leaves_its_segment_to_who_asks_for_it) {
  parts_.push(parts_.queued(context_, "key", "value"));
  ASSERT_TRUE(writer_->wait_until_safe(parts_.queue.last_position()).is_ok());
  parts_.attached.control().add_leave_request();
  const auto segment = [&] {
    MutexLock lock(parts_.committer.mutex());
    return parts_.committer.segments().segment();
  };
  while (segment() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

}  // namespace
}  // namespace modcache::store
