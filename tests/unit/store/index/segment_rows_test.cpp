// SPDX-License-Identifier: Apache-2.0
#include "store/index/segment_rows.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "support/index_fixture.h"

namespace modcache::store {
namespace {

constexpr std::int64_t kEver = std::numeric_limits<std::int64_t>::min();

class SegmentRowsTest : public testing::IndexTest {
 protected:
  SegmentRowsTest() {
    EXPECT_TRUE(index_->commit({row(context_, "a", 1), row(context_, "b", 2)}).is_ok());
  }
  PlacedRow placed(std::string_view key, Sequence sequence) const {
    return {context_.digest, key, sequence, 1, 64};
  }
};

TEST_F(SegmentRowsTest, moves_and_evicts_only_rows_that_are_as_they_were) {
  const auto states = states_of(*index_, {placed("a", 1), placed("b", 9)}).value();
  EXPECT_TRUE(states[0].is_live);
  EXPECT_FALSE(states[1].is_live);
  const MovedRow moved{placed("a", 1), 7, 640, 128, {}};
  const MovedRow overtaken{placed("b", 9), 7, 1280, 128, {}};
  const Settled settled =
      settle_rows(*index_, 1, {moved, overtaken}, {placed("b", 2), placed("none", 3)}, {7}).value();
  EXPECT_EQ(settled.is_moved, (std::vector<bool>{true, false}));
  EXPECT_EQ(settled.moved, 1);
  EXPECT_EQ(settled.evicted, 1);
  EXPECT_EQ(index_->find(context_.digest, "a").value().segment, 7u);
  EXPECT_TRUE(index_->find(context_.digest, "b").is_not_found());
  EXPECT_EQ(index_->last_offset(7).value(), 1280u);
  const std::vector<SegmentFacts> segments = facts();
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_EQ(segments[0].live_entries, 0);
  EXPECT_EQ(segments[1].live_entries, 1);
  EXPECT_EQ(segments[1].tombstones, 1);
}

TEST_F(SegmentRowsTest, forgets_a_segment_with_the_rows_that_still_led_to_it) {
  EXPECT_TRUE(leads_into(*index_, 1, 0, 65, 9).value());
  EXPECT_FALSE(leads_into(*index_, 1, 65, 999, 9).value());
  EXPECT_EQ(live_bytes(*index_, kEver).value().front().entries, 2);
  EXPECT_EQ(forget_segment(*index_, 1, {}).value(), 2);
  EXPECT_TRUE(live_bytes(*index_, kEver).value().empty());
  EXPECT_EQ(index_->count_entries().value(), 0);
}

TEST_F(SegmentRowsTest, records_elsewhere_what_keeps_older_records_from_coming_back) {
  EXPECT_TRUE(clears_to_record(*index_, 1, false).value().empty());
  ASSERT_TRUE(index_->commit({row(context_, "a", 5)}).is_ok());
  const std::vector<Clear> clears = clears_to_record(*index_, 1, false).value();
  ASSERT_EQ(clears.size(), 1u);
  EXPECT_EQ(clears[0].context, context_.digest);
  EXPECT_EQ(clears[0].filter.key_prefix, "a");
  EXPECT_EQ(clears[0].sequence, 6u);
}

}  // namespace
}  // namespace modcache::store
