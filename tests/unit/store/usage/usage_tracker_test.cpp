// SPDX-License-Identifier: Apache-2.0
#include "store/usage/usage_tracker.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "support/fixed_policy.h"
#include "support/shared_index_fixture.h"

namespace modcache::store {
namespace {

using testing::added;
using testing::address;
using testing::admitting_policy;
using testing::keeping_policy;
using testing::View;

class UsageTrackerTest : public testing::SharedIndexTest {
 protected:
  UsageTrackerTest() { view_.write({added(address(1), 5)}); }
  policy::Tick used_at(std::uint64_t number) const {
    SharedIndex::Slot slot;
    EXPECT_EQ(view_.index.find(address(number), slot), SharedIndex::Answer::kFound);
    return slot.usage.used_at;
  }

  void note_lookup(std::uint64_t number, Sequence sequence) {
    const Digest128 looked_up = address(number);
    tracker_.note_lookups(std::span<const Digest128>(&looked_up, 1),
                          std::span<const Sequence>(&sequence, 1));
  }

  View view_{directory_};
  UsageTracker tracker_{view_.index};
};

TEST_F(UsageTrackerTest, notes_the_use_of_the_entry_that_was_found) {
  tracker_.set_policy(admitting_policy(nullptr));
  view_.index.tick(7);
  note_lookup(1, 5);
  EXPECT_EQ(used_at(1), view_.index.now());
}

TEST_F(UsageTrackerTest, notes_nothing_of_what_was_not_found_or_replaced_since) {
  tracker_.set_policy(admitting_policy(nullptr));
  view_.index.tick(7);
  note_lookup(1, 0);
  note_lookup(1, 4);
  note_lookup(2, 6);
  EXPECT_EQ(used_at(1), 0);
}

TEST_F(UsageTrackerTest, notes_many_lookups_at_once_each_at_a_time_of_its_own) {
  tracker_.set_policy(admitting_policy(nullptr));
  view_.write({added(address(2), 6), added(address(3), 7)});
  view_.index.tick(7);
  const std::vector<Digest128> looked_up{address(1), address(9), address(3), address(2)};
  tracker_.note_lookups(looked_up, std::vector<Sequence>{5, 0, 7, 6});
  EXPECT_EQ(view_.index.now(), 11u);
  EXPECT_EQ(used_at(1), 8u);
  EXPECT_EQ(used_at(3), 10u);
  EXPECT_EQ(used_at(2), 11u);
}

TEST_F(UsageTrackerTest, without_a_policy_all_may_come_and_nothing_is_spared) {
  EXPECT_FALSE(tracker_.has_policy());
  note_lookup(1, 5);
  tracker_.tell_sizes(100, 100);
  EXPECT_TRUE(tracker_.admits(address(2)));
  policy::Usage usage;
  EXPECT_FALSE(tracker_.is_spared(address(1), 5, 0, usage));
}

TEST_F(UsageTrackerTest, asks_the_policy_who_may_come) {
  tracker_.set_policy(keeping_policy(nullptr));
  EXPECT_FALSE(tracker_.admits(address(2)));
}

// Admits only in the place of an entry that was used at a certain time.
class ReplacesOne final : public policy::Policy {
 public:
  explicit ReplacesOne(policy::Tick used_at) : used_at_(used_at) {}
  bool may_replace(policy::Usage victim, std::uint64_t, policy::Tick) override {
    return victim.used_at == used_at_;
  }
  std::uint32_t rank(policy::Usage usage, policy::Tick) const override { return usage.used_at; }

 private:
  const policy::Tick used_at_;
};

TEST_F(UsageTrackerTest, compares_a_new_entry_with_the_lowest_ranked_of_a_sample) {
  std::vector<SharedIndex::Change> changes;
  for (std::uint64_t i = 1; i <= 1000; ++i) {
    changes.push_back(added(address(i), i + 10, i == 1 ? 5 : 0));
    changes.back().usage.used_at = i % 2 == 0 ? 70 : 80;
  }
  view_.write(changes);
  // Nearly every sample has one of those that were used at 70.
  tracker_.set_policy(std::make_unique<ReplacesOne>(70));
  int admitted = 0;
  for (std::uint64_t i = 2000; i < 2100; ++i) admitted += tracker_.admits(address(i)) ? 1 : 0;
  EXPECT_GE(admitted, 90);
  tracker_.set_policy(std::make_unique<ReplacesOne>(80));
  admitted = 0;
  for (std::uint64_t i = 2000; i < 2100; ++i) admitted += tracker_.admits(address(i)) ? 1 : 0;
  EXPECT_LE(admitted, 10);
}

TEST_F(UsageTrackerTest, spares_entries_of_the_rank_and_above) {
  tracker_.set_policy(admitting_policy(nullptr));
  note_lookup(1, 5);
  const std::uint64_t rank = tracker_.rank({used_at(1), 0, 0, 0}, view_.index.now());
  policy::Usage usage;
  EXPECT_TRUE(tracker_.is_spared(address(1), 5, rank, usage));
  EXPECT_EQ(usage.used_at, used_at(1));
  EXPECT_FALSE(tracker_.is_spared(address(1), 5, rank + 1, usage));
  EXPECT_FALSE(tracker_.is_spared(address(1), 4, 0, usage));  // another sequence
  EXPECT_FALSE(tracker_.is_spared(address(2), 5, 0, usage));  // not in the index
}

}  // namespace
}  // namespace modcache::store
