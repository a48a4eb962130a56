// SPDX-License-Identifier: Apache-2.0
//
// SegmentSurvey and SegmentEmptier: which segment is emptied, and what becomes of its entries.
#include "store/reclaim/segment_emptier.h"

#include <gtest/gtest.h>

#include "store/reclaim/segment_beginning.h"
#include "store/reclaim/segment_survey.h"
#include "support/store_parts.h"

namespace modcache::store {
namespace {

using testing::StoreParts;

class SegmentEmptierTest : public testing::StorePartsTest {
 protected:
  SegmentEmptierTest() {
    fill(3, 10000);  // beside which context and headers are no dead space worth the work
    parts_.emplace(options_);
    pass_.most_bytes = options_.disk_budget_bytes;
    pass_.expired_before_us = parts_->attached.expired_before_us();
  }
  std::vector<SegmentUse> candidates(Sparing sparing) {
    pass_.sparing = sparing;
    parts_->budget.measure();
    return SegmentSurvey(parts_->attached, parts_->budget, parts_->usage).candidates(pass_).value();
  }
  Status empty(Sparing sparing, std::uint64_t segment) {
    pass_.sparing = sparing;
    return SegmentEmptier(parts_->attached, parts_->committer, parts_->budget, parts_->usage,
                          parts_->reclaimer.room())
        .empty(pass_, segment);
  }
  std::uint64_t only_segment() { return parts_->attached.directory().segments().value().front(); }

  std::optional<StoreParts> parts_;
  ReclaimPass pass_;
};

TEST_F(SegmentEmptierTest, a_segment_without_dead_space_is_worth_emptying_only_to_evict) {
  EXPECT_TRUE(candidates(Sparing::kAllLive).empty());
  const std::vector<SegmentUse> all = candidates(Sparing::kNone);
  ASSERT_EQ(all.size(), 1);
  EXPECT_EQ(all.front().id, only_segment());
  EXPECT_GT(all.front().live_bytes, 0);
  EXPECT_LE(all.front().live_bytes, all.front().size_bytes);
  EXPECT_EQ(all.front().first_sequence, 1);
}

TEST_F(SegmentEmptierTest, entries_that_stay_are_moved_to_another_segment) {
  const std::uint64_t segment = only_segment();
  const std::uint64_t reclaims = parts_->attached.control().reclaims();
  ASSERT_TRUE(empty(Sparing::kAllLive, segment).is_ok());
  EXPECT_NE(only_segment(), segment);
  EXPECT_GT(parts_->attached.control().reclaims(), reclaims);
  EXPECT_EQ(pass_.evicted.entries, 0);
  for (const std::string key : {"0", "1", "2"}) {
    EXPECT_TRUE(parts_->find({context_, key}).is_ok()) << key;
  }
}

TEST_F(SegmentEmptierTest, entries_that_are_not_spared_leave) {
  ASSERT_TRUE(empty(Sparing::kNone, only_segment()).is_ok());
  EXPECT_EQ(pass_.evicted.entries, 3);
  EXPECT_TRUE(parts_->find({context_, "0"}).is_not_found());
}

TEST_F(SegmentEmptierTest, gives_up_where_there_is_no_room_or_no_segment_or_the_store_closes) {
  const std::uint64_t segment = only_segment();
  EXPECT_TRUE(empty(Sparing::kAllLive, segment + 1).is_not_found());
  pass_.most_bytes = 1;
  EXPECT_EQ(empty(Sparing::kAllLive, segment).code(), StatusCode::kNoSpace);
  pass_.most_bytes = options_.disk_budget_bytes;
  parts_->reclaimer.room().stop();
  EXPECT_EQ(empty(Sparing::kAllLive, segment).code(), StatusCode::kBusy);
}

TEST_F(SegmentEmptierTest, a_segment_that_cannot_be_read_was_begun_before_all_others) {
  const SegmentBeginning beginning = beginning_of(parts_->attached.directory(), only_segment() + 1);
  EXPECT_EQ(beginning.first_sequence, 0);
  EXPECT_EQ(beginning.created_at_us, 0);
  EXPECT_GT(beginning_of(parts_->attached.directory(), only_segment()).created_at_us, 0);
}

}  // namespace
}  // namespace modcache::store
