// SPDX-License-Identifier: Apache-2.0
#include "store/reclaim/admission.h"

#include <gtest/gtest.h>

#include "support/fixed_policy.h"
#include "support/store_parts.h"

namespace modcache::store {
namespace {

using Room = Admission::Room;
using testing::StoreParts;

constexpr std::uint64_t kSizeBytes = 1000;

class AdmissionTest : public testing::StorePartsTest {
 protected:
  AdmissionTest() { options_.make_policy = testing::keeping_policy; }
  // Opens a directory whose database alone is larger than the budget.
  StoreParts full() {
    fill(1);
    options_.disk_budget_bytes = 16 << 10;
    return StoreParts(options_);
  }
  Room room_for(StoreParts& parts, const std::string& key, bool replaces = false,
                std::uint64_t size_bytes = kSizeBytes) {
    parts.budget.measure();
    Admission admission(parts.attached, parts.budget, parts.usage, parts.reclaimer.room());
    return admission.room_for({context_, key}, replaces, size_bytes, 0);
  }
};

TEST_F(AdmissionTest, where_there_is_room_all_may_come) {
  StoreParts parts(options_);
  EXPECT_EQ(room_for(parts, "key"), Room::kFree);
  EXPECT_FALSE(parts.reclaimer.room().wait_until_asked(true).is_asked);
}

TEST_F(AdmissionTest, a_full_directory_keeps_out_whom_the_policy_does_not_admit) {
  StoreParts parts(full());
  EXPECT_EQ(room_for(parts, "key"), Room::kNone);
  const RoomRequests::Asked asked = parts.reclaimer.room().wait_until_asked(true);
  EXPECT_TRUE(asked.is_asked);
  EXPECT_FALSE(asked.may_evict);
}

TEST_F(AdmissionTest, others_leave_for_whom_the_policy_admits) {
  options_.make_policy = testing::admitting_policy;
  StoreParts parts(full());
  EXPECT_EQ(room_for(parts, "key"), Room::kOfOthers);
  const RoomRequests::Asked asked = parts.reclaimer.room().wait_until_asked(true);
  EXPECT_TRUE(asked.may_evict);
  EXPECT_EQ(asked.room_bytes, kSizeBytes);
  EXPECT_EQ(room_for(parts, "key", false, 16 << 10), Room::kNone);  // too large a part of all
}

TEST_F(AdmissionTest, others_leave_for_a_value_that_replaces_one) {
  StoreParts parts(full());
  EXPECT_EQ(room_for(parts, "0", true), Room::kOfOthers);
  EXPECT_EQ(room_for(parts, "0", false), Room::kNone);
  EXPECT_EQ(room_for(parts, "key", true), Room::kNone);
}

TEST_F(AdmissionTest, nobody_is_let_in_while_nothing_more_can_leave) {
  options_.make_policy = testing::admitting_policy;
  StoreParts parts(full());
  parts.reclaimer.room().set_exhausted();
  EXPECT_EQ(room_for(parts, "key"), Room::kNone);
}

}  // namespace
}  // namespace modcache::store
