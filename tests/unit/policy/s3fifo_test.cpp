// SPDX-License-Identifier: Apache-2.0
#include "policy/s3fifo.h"

#include <gtest/gtest.h>

#include <vector>

#include "support/traces.h"

namespace modcache::policy {
namespace {

using testing::hash_of;

class S3FifoTest : public ::testing::Test {
 protected:
  S3FifoTest() { s3fifo_.measured(0, kRoom); }

  static constexpr std::uint64_t kRoom = 400;

  // Inserts so many others that a new entry is no longer safe.
  void insert_others(std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) s3fifo_.inserted(hash_of(1'000'000 + i), ++now_);
  }

  Usage used_once(std::uint32_t sample) {
    const Usage fresh = s3fifo_.inserted(hash_of(sample), ++now_);
    return s3fifo_.used(fresh, ++now_);
  }

  S3FifoState state_{};
  std::vector<GhostSlot> slots_ = std::vector<GhostSlot>(1024);
  S3Fifo s3fifo_{state_, Ghosts(slots_.data(), slots_.size())};
  Tick now_ = 100;
};

TEST_F(S3FifoTest, what_is_new_is_left_alone_for_a_while) {
  insert_others(40);
  const Usage used = used_once(1);
  const Usage fresh = s3fifo_.inserted(hash_of(2), ++now_);
  EXPECT_GT(s3fifo_.rank(fresh, now_), s3fifo_.rank(used, now_));
}

TEST_F(S3FifoTest, what_was_never_used_leaves_before_what_was) {
  const Usage used = used_once(1);
  const Usage unused = s3fifo_.inserted(hash_of(2), ++now_);
  insert_others(40);
  EXPECT_LT(s3fifo_.rank(unused, now_), s3fifo_.rank(used, now_));
}

TEST_F(S3FifoTest, of_two_that_were_never_used_the_older_leaves) {
  const Usage older = s3fifo_.inserted(hash_of(1), now_ += 10);
  const Usage newer = s3fifo_.inserted(hash_of(2), now_ += 10);
  insert_others(40);
  EXPECT_LT(s3fifo_.rank(older, now_), s3fifo_.rank(newer, now_));
}

// Ages were once compared in quarters, so two close ones were equal and the wrong entry left.
TEST_F(S3FifoTest, of_two_that_were_used_as_often_the_one_used_a_tick_earlier_leaves) {
  Usage first = used_once(1);
  const Usage second = used_once(2);
  now_ = second.used_at + 1;
  EXPECT_LT(s3fifo_.rank(first, now_), s3fifo_.rank(second, now_));
  first.used_at = second.used_at + 1;
  EXPECT_GT(s3fifo_.rank(first, now_), s3fifo_.rank(second, now_));
}

TEST_F(S3FifoTest, what_comes_back_soon_after_it_left_unused_belongs_to_the_main_part) {
  const Usage unused = s3fifo_.inserted(hash_of(1), ++now_);
  insert_others(40);
  s3fifo_.evicted(hash_of(1), unused, now_);
  const Usage back = s3fifo_.inserted(hash_of(1), ++now_);
  const Usage stranger = s3fifo_.inserted(hash_of(2), ++now_);
  insert_others(40);
  EXPECT_GT(s3fifo_.rank(back, now_), s3fifo_.rank(stranger, now_));
}

TEST_F(S3FifoTest, each_of_three_uses_is_worth_a_turn) {
  // An unused entry of the main part lived for 1,000 ticks, which is the length of a turn.
  const Usage once = s3fifo_.used(s3fifo_.inserted(hash_of(1), now_), now_);
  s3fifo_.evicted(hash_of(1), once, now_ + 1000);
  now_ += 1000;
  Usage often = s3fifo_.used(s3fifo_.inserted(hash_of(2), now_), now_);
  Usage late = s3fifo_.used(s3fifo_.inserted(hash_of(3), now_), now_);
  for (int i = 0; i < 9; ++i) often = s3fifo_.used(often, now_);
  late.used_at = now_ + 2900;
  EXPECT_GT(s3fifo_.rank(often, now_ + 2900), s3fifo_.rank(late, now_ + 2900));
  late.used_at = now_ + 3100;
  EXPECT_LT(s3fifo_.rank(often, now_ + 3100), s3fifo_.rank(late, now_ + 3100));
}

TEST_F(S3FifoTest, what_nobody_used_for_the_whole_horizon_leaves_with_what_was_never_used) {
  s3fifo_.set_horizon(5000);
  const Usage used = used_once(1);
  EXPECT_FALSE(s3fifo_.is_abandoned(used, now_ + 5000));
  EXPECT_TRUE(s3fifo_.is_abandoned(used, now_ + 5001));
  now_ += 6000;
  const Usage unused = s3fifo_.inserted(hash_of(2), ++now_);
  insert_others(40);
  EXPECT_LT(s3fifo_.rank(used, now_), s3fifo_.rank(unused, now_));
}

// Another process uses it after this one took the time.
TEST_F(S3FifoTest, what_is_used_meanwhile_is_not_taken_for_abandoned) {
  s3fifo_.set_horizon(5000);
  const Usage earlier = used_once(1);
  const Tick now = now_;
  const Usage meanwhile = used_once(2);
  EXPECT_FALSE(s3fifo_.is_abandoned(meanwhile, now));
  EXPECT_GE(s3fifo_.rank(meanwhile, now), s3fifo_.rank(earlier, now));
}

TEST_F(S3FifoTest, any_bytes_have_a_rank_and_a_next_use) {
  testing::Random random(1);
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t bits = random.next();
    const Usage usage{static_cast<Tick>(bits), static_cast<std::uint8_t>(bits >> 32),
                      static_cast<std::uint8_t>(bits >> 40),
                      static_cast<std::uint16_t>(bits >> 48)};
    state_.turn = static_cast<Tick>(random.next());
    state_.room_entries = random.next();
    const auto now = static_cast<Tick>(random.next());
    s3fifo_.rank(usage, now);
    EXPECT_LE(s3fifo_.used(usage, now).uses, 3);
    EXPECT_EQ(s3fifo_.used(usage, now).of_holder, usage.of_holder);
    EXPECT_EQ(s3fifo_.spared(usage, now).of_holder, usage.of_holder);
    s3fifo_.evicted(random.next(), usage, now);
    s3fifo_.inserted(random.next(), now);
  }
}

}  // namespace
}  // namespace modcache::policy
