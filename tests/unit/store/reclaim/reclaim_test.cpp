// SPDX-License-Identifier: Apache-2.0
//
// Budgets that hold: what leaves when a directory is full, and what stays.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "store/control/control_page.h"
#include "store/directory/directory.h"
#include "support/directory_bytes.h"
#include "support/fault_file_system.h"
#include "support/reclaim_fixture.h"
#include "support/traces.h"

namespace modcache::store {
namespace {

using Clock = std::chrono::steady_clock;
using testing::get;
using ::testing::IsEmpty;
using testing::kBudget;
using testing::kPayload;
using testing::kSegment;
using testing::open_store;
using testing::put;
using testing::ReclaimTest;

TEST_F(ReclaimTest, a_full_directory_lets_the_oldest_go_for_the_newest) {
  auto store = open_store(options_);
  fill(*store, 0, 1000);
  EXPECT_GT(evicted_, 700);
  EXPECT_EQ(count(*store, 0, 500), 0);
  EXPECT_GT(count(*store, 900, 1000), 80);
  ASSERT_TRUE(store->evict(kBudget).is_ok()) << "waits for the pass that may be running";
  EXPECT_EQ(store->totals().value().entries + evicted_ + not_kept_, 1000);
  EXPECT_GT(used_bytes(), kBudget / 4 * 3);
}

// Low ranks are spread over all segments then, and puts come while room is made for others.
TEST_F(ReclaimTest, a_full_directory_goes_on_taking_what_its_policy_admits) {
  options_.make_policy = [](void* state) { return policy::make_policy(policy::Kind::kLru, state); };
  testing::FaultFileSystem without_syncs(fs::posix_file_system());
  auto store = open_store(options_, without_syncs);
  testing::Trace trace = testing::moving_set(kBudget / kPayload * 9 / 10);
  trace.resize(trace.size() / 4);
  int found = 0;
  int puts = 0;
  int refused = 0;
  for (const std::uint32_t sample : trace) {
    const int i = static_cast<int>(sample);
    if (store->find({context_, std::to_string(i)}).is_ok()) {
      ++found;
      continue;
    }
    auto sequence = put(*store, context_, std::to_string(i), value_of(i));
    ASSERT_TRUE(sequence.is_ok());
    if (sequence.value() == 0) ++refused;
    if (++puts % 8 != 0) continue;
    ASSERT_TRUE(store->flush().is_ok());
    ASSERT_LE(used_bytes(), kBudget + kSegment);
  }
  EXPECT_LT(refused + not_kept_, puts / 20) << puts;
  EXPECT_GT(found, static_cast<int>(trace.size()) * 6 / 10);
}

TEST_F(ReclaimTest, a_policy_that_lets_nobody_in_keeps_all_that_came_first_and_uses_the_budget) {
  options_.make_policy = testing::keeping_policy;
  auto store = open_store(options_);
  fill(*store, 0, 1000);
  EXPECT_EQ(evicted_, 0);
  const int kept = static_cast<int>(store->totals().value().entries);
  EXPECT_EQ(count(*store, 0, kept), kept);
  EXPECT_GT(used_bytes(), kBudget / 10 * 9);
  EXPECT_LE(used_bytes(), kBudget);
}

TEST_F(ReclaimTest, a_policy_that_lets_nobody_in_is_asked_of_new_keys_that_would_replace_too) {
  options_.make_policy = testing::keeping_policy;
  for (const ReadVia read_via : {ReadVia::kMmap, ReadVia::kPread}) {
    options_.read_via = read_via;
    auto store = open_store(options_);
    evicted_ = 0;  // the put that was let in may have made others leave
    fill(*store, 0, 300);
    for (int i = 1000; i < 1100; ++i) {
      const std::string key = std::to_string(i);
      ASSERT_EQ(store->put({{context_, key}, "", share_bytes(value_of(i)), 0, true}).value(), 0u);
    }
    EXPECT_EQ(evicted_, 0);
    EXPECT_NE(store->put({{context_, "3"}, "", share_bytes(value_of(4)), 0, true}).value(), 0u);
    ASSERT_TRUE(store->flush().is_ok());
    EXPECT_EQ(get(*store, context_, "3"), value_of(4));
    ASSERT_TRUE(store->clear({}).is_ok());
  }
}

TEST_F(ReclaimTest, room_that_a_clear_gave_back_is_for_all_who_were_never_short_of_it) {
  options_.make_policy = testing::keeping_policy;
  auto store = open_store(options_);
  fill(*store, 0, 165);
  for (int i = 0; i < 24; ++i)
    ASSERT_NE(put(*store, context_, "y" + std::to_string(i), value_of(i)).value(), 0u);
  ASSERT_TRUE(store->flush().is_ok());
  const std::size_t segments_before = segments();
  ASSERT_EQ(store->clear({"", "y"}).value(), 24);
  ASSERT_LT(segments(), segments_before);
  ASSERT_LT(kBudget - used_bytes(), 3 * kSegment);
  for (int i = 0; i < 20; ++i) {
    EXPECT_NE(put(*store, context_, "z" + std::to_string(i), value_of(i)).value(), 0u) << i;
  }
}

TEST_F(ReclaimTest, space_of_replaced_entries_comes_back_without_evicting_any) {
  options_.make_policy = testing::keeping_policy;
  auto store = open_store(options_);
  for (int round = 0; round < 20; ++round) fill(*store, 0, 60);
  EXPECT_EQ(count(*store, 0, 60), 60);
  EXPECT_EQ(evicted_, 0);
  EXPECT_EQ(store->totals().value().entries, 60);
}

// The keys of what was there at first are never asked for again.
TEST_F(ReclaimTest, what_is_too_old_makes_room_although_nobody_is_let_in) {
  options_.make_policy = testing::keeping_policy;
  options_.max_age_us = 3'600'000'000;
  auto store = open_store(options_);
  const std::int64_t stored_at_us = now_us() - 2 * options_.max_age_us;
  std::vector<Sequence> sequences{1};
  for (int i = 0; sequences.front() != 0; ++i) {
    const std::string key = std::to_string(i);
    const RowPut row{key, "header", share_bytes(value_of(i)), 0, false, stored_at_us};
    ASSERT_TRUE(store->put_all(context_, {row}, sequences).is_ok());
    if (i % 10 == 0) {
      ASSERT_TRUE(store->flush().is_ok());  // what still waits to be written frees nothing
    }
  }
  Sequence taken = 0;
  for (int attempt = 0; taken == 0 && attempt < 1000; ++attempt) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    taken = put(*store, context_, "new", value_of(0)).value();
  }
  EXPECT_NE(taken, 0U);
  EXPECT_TRUE(get(*store, context_, "new") == value_of(0));
}

TEST_F(ReclaimTest, space_of_cleared_entries_comes_back) {
  options_.make_policy = testing::keeping_policy;
  auto store = open_store(options_);
  const Context other = testing::context_named("other");
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 60; ++i) {
      ASSERT_NE(put(*store, context_, std::to_string(i), value_of(i)).value(), 0u) << round;
      ASSERT_NE(put(*store, other, std::to_string(i), "small").value(), 0u) << round;
    }
    ASSERT_TRUE(store->flush().is_ok());
    ASSERT_TRUE(store->clear({"scope", ""}).is_ok());
    ASSERT_TRUE(store->evict(kBudget / 2).is_ok());
  }
  EXPECT_EQ(store->totals().value().entries, 60);
  EXPECT_LE(used_bytes(), kBudget / 2);
}

TEST_F(ReclaimTest, evicts_down_to_what_it_is_told) {
  auto store = open_store(options_);
  fill(*store, 0, 150);
  auto evicted = store->evict(2 << 20);
  ASSERT_TRUE(evicted.is_ok()) << evicted.status().message();
  EXPECT_LE(used_bytes(), 2u << 20);
  EXPECT_GT(evicted.value().entries, 30);
  EXPECT_GT(evicted.value().freed_bytes, 1 << 20);
  EXPECT_EQ(store->totals().value().entries, 150 - evicted.value().entries);
  EXPECT_EQ(count(*store, 0, 150), 150 - evicted.value().entries);
  EXPECT_EQ(evicted_, evicted.value().entries);
  ASSERT_TRUE(store->evict(0).is_ok());
  EXPECT_EQ(store->totals().value().entries, 0);
  EXPECT_THAT(testing::segment_files(directory_.path()), IsEmpty());
}

TEST_F(ReclaimTest, evicting_leaves_what_is_used_however_far_below_its_budget_the_directory_is) {
  options_.make_policy = [](void* state) { return policy::make_policy(policy::Kind::kLru, state); };
  for (const std::uint64_t budget_bytes : {kBudget, kBudget << 10}) {
    options_.disk_budget_bytes = budget_bytes;
    auto store = open_store(options_);
    fill(*store, 0, 150);
    EXPECT_EQ(count(*store, 20, 150), 130);
    EXPECT_EQ(count(*store, 0, 20), 20);
    ASSERT_TRUE(store->evict(used_bytes() / 2).is_ok());
    EXPECT_EQ(count(*store, 0, 20), 20);
    EXPECT_GT(count(*store, 20, 150), 0);
    EXPECT_LT(count(*store, 20, 150), 60);
    ASSERT_TRUE(store->evict(0).is_ok());
  }
}

TEST_F(ReclaimTest, evicting_a_little_far_below_the_budget_lets_little_go) {
  options_.disk_budget_bytes = 1 << 30;
  auto store = open_store(options_);
  fill(*store, 0, 100);
  ASSERT_EQ(testing::segment_files(directory_.path()).size(), 1U);
  const std::uint64_t to_bytes = used_bytes() - 10 * kPayload;
  auto evicted = store->evict(to_bytes);
  ASSERT_TRUE(evicted.is_ok()) << evicted.status().message();
  EXPECT_LE(used_bytes(), to_bytes);
  EXPECT_GE(evicted.value().entries, 9);
  EXPECT_LE(evicted.value().entries, 25);
  EXPECT_EQ(count(*store, 0, 100), 100 - evicted.value().entries);
}

TEST_F(ReclaimTest, what_is_still_read_stays_readable_and_counts) {
  auto store = open_store(options_);
  fill(*store, 0, 100);
  auto other = open_store(options_);
  auto found = other->find({context_, "3"});
  ASSERT_TRUE(found.is_ok());
  FoundEntries batch = other->find_all(context_, {"4"});
  ASSERT_TRUE(batch.has(0));
  ASSERT_TRUE(store->evict(0).is_ok());
  EXPECT_FALSE(retired().empty());
  EXPECT_GT(used_bytes(), kPayload);
  EXPECT_EQ(get(*other, context_, "50"), "<missing>");
  std::string text(found.value()->payload_size_bytes(), '?');
  ASSERT_TRUE(found.value()->read_payload(text.data()).is_ok());
  EXPECT_EQ(text, value_of(3));
  text.assign(batch.payload_size_bytes(0), '?');
  ASSERT_TRUE(batch.read(0, text.data()).is_ok());
  EXPECT_EQ(text, value_of(4));
  found = Status::not_found();
  batch = FoundEntries();
  other = nullptr;
  ASSERT_TRUE(store->evict(0).is_ok());
  EXPECT_THAT(retired(), IsEmpty());
}

// For longer than readers take to let go.
TEST_F(ReclaimTest, what_nobody_lets_go_of_is_no_reason_to_empty_the_rest) {
  auto store = open_store(options_);
  fill(*store, 0, 150);
  std::vector<std::unique_ptr<FoundEntry>> held;
  for (int i = 0; i < 150; ++i) {
    held.push_back(store->find({context_, std::to_string(i)}).value());
  }
  ASSERT_TRUE(store->evict(kBudget / 4).is_ok());
  std::vector<int> left;
  for (int i = 0; i < 150; ++i) {
    if (get(*store, context_, std::to_string(i)) != "<missing>") left.push_back(i);
  }
  ASSERT_GT(left.size(), 10u);
  ASSERT_LT(left.size(), 100u);
  std::this_thread::sleep_for(std::chrono::milliseconds(3500));
  fill(*store, 1000, 1800);
  for (const int i : left) EXPECT_EQ(get(*store, context_, std::to_string(i)), value_of(i)) << i;
  EXPECT_LE(used_bytes(), kBudget + kSegment);
  held.clear();
  ASSERT_TRUE(store->evict(kBudget / 2).is_ok());
  EXPECT_LE(used_bytes(), kBudget / 2);
  EXPECT_NE(put(*store, context_, "afterwards", value_of(1)).value(), 0u);
}

// A third of each segment is dead, and all of them are read for longer than readers take to let go:
// what stays of them is written anew, and they are still there.
TEST_F(ReclaimTest, readers_that_let_go_late_make_no_directory_larger_than_its_budget) {
  auto store = open_store(options_);
  std::vector<std::unique_ptr<FoundEntry>> held;
  for (int i = 0; i < 180; ++i) {
    const std::string key = (i % 3 == 0 ? "cleared" : "kept") + std::to_string(i);
    ASSERT_NE(put(*store, context_, key, value_of(i)).value(), 0u);
    ASSERT_TRUE(store->flush().is_ok());
    held.push_back(store->find({context_, key}).value());
  }
  ASSERT_TRUE(store->clear({"", "cleared", 0}).is_ok());
  std::uint64_t most = 0;
  const auto end = Clock::now() + std::chrono::seconds(5);
  for (int i = 0; Clock::now() < end; ++i) {
    ASSERT_TRUE(put(*store, context_, std::to_string(i), value_of(i)).is_ok());
    ASSERT_TRUE(store->flush().is_ok());
    most = std::max(most, used_bytes());
  }
  EXPECT_LE(most, kBudget + kSegment);
  EXPECT_FALSE(retired().empty());
}

TEST_F(ReclaimTest, a_rebuild_after_evictions_returns_nothing_that_was_replaced) {
  for (int round = 0; round < 3; ++round) {
    auto store = open_store(options_);
    fill(*store, 0, 40);
    // Of each key the segments hold an older value, too.
    for (int i = 0; i < 40; ++i) {
      ASSERT_NE(put(*store, context_, std::to_string(i), "newer").value(), 0u);
    }
    ASSERT_TRUE(store->flush().is_ok());
    fill(*store, 100, 400);
    store = nullptr;
    std::filesystem::remove(directory_ / "index.sqlite");
    store = open_store(options_);
    for (int i = 0; i < 40; ++i) {
      EXPECT_THAT(get(*store, context_, std::to_string(i)), ::testing::AnyOf("newer", "<missing>"));
    }
    EXPECT_GT(count(*store, 100, 400), 50);
  }
}

TEST_F(ReclaimTest, what_retired_segments_are_left_is_taken_up_and_is_no_segment) {
  auto store = open_store(options_);
  fill(*store, 0, 20);
  store = nullptr;
  const std::string segment = testing::segment_files(directory_.path()).at(0);
  std::filesystem::copy(segment, directory_ / "segments/00c0ffee00c0ffee.gone");
  std::filesystem::remove(directory_ / "index.sqlite");
  store = open_store(options_);
  EXPECT_EQ(store->totals().value().entries, 20);
  ASSERT_TRUE(store->evict(kBudget / 1024).is_ok());
  EXPECT_THAT(retired(), IsEmpty());
}

TEST_F(ReclaimTest, an_entry_larger_than_half_a_full_directory_pushes_nothing_out) {
  auto store = open_store(options_);
  fill(*store, 0, 300);
  // What is made room for in the background has ended then.
  store = nullptr;
  store = open_store(options_);
  const std::int64_t entries = store->totals().value().entries;
  EXPECT_EQ(put(*store, context_, "large", std::string(kBudget / 4 * 3, 'l')).value(), 0u);
  ASSERT_TRUE(store->flush().is_ok());
  EXPECT_EQ(store->totals().value().entries, entries);
}

TEST_F(ReclaimTest, a_new_value_that_is_not_kept_leaves_no_old_one_behind) {
  auto store = open_store(options_);
  fill(*store, 0, 10);
  const std::uint64_t removals = store->removals();
  Put larger{{context_, "3"}, "header", share_bytes(std::string(2 * kBudget, 'l')), 0, true};
  EXPECT_EQ(store->put(larger).value(), 0u);
  EXPECT_EQ(get(*store, context_, "3"), "<missing>");
  EXPECT_GT(store->removals(), removals);
  auto control =
      ControlPage::open(fs::posix_file_system(), directory_ / "control", ReadVia::kPread, false);
  EXPECT_GE(control.value()->superseded(), 4u);  // the sequence of the old one
  store = nullptr;
  std::filesystem::remove(directory_ / "index.sqlite");
  EXPECT_EQ(get(*open_store(options_), context_, "3"), "<missing>");
}

TEST_F(ReclaimTest, a_put_that_replaces_what_was_evicted_counts_as_a_removal) {
  auto store = open_store(options_);
  ASSERT_TRUE(put(*store, context_, "a", "1").is_ok());
  ASSERT_TRUE(store->put({{context_, "b"}, "", share_bytes("2"), 0, true}).is_ok());
  ASSERT_TRUE(store->flush().is_ok());
  const std::uint64_t removals = store->removals();
  ASSERT_TRUE(store->evict(0).is_ok());
  ASSERT_TRUE(put(*store, context_, "b", "2").is_ok());
  ASSERT_TRUE(store->flush().is_ok());
  EXPECT_EQ(store->removals(), removals);
  ASSERT_TRUE(store->put({{context_, "a"}, "", share_bytes("3"), 0, true}).is_ok());
  ASSERT_TRUE(store->flush().is_ok());
  EXPECT_GT(store->removals(), removals);
}

TEST_F(ReclaimTest, evicting_is_no_removal) {
  auto store = open_store(options_);
  fill(*store, 0, 20);
  const std::uint64_t removals = store->removals();
  ASSERT_TRUE(store->evict(0).is_ok());
  EXPECT_EQ(store->removals(), removals);
}

TEST_F(ReclaimTest, tiny_budgets_keep_little_or_nothing_and_fail_at_nothing) {
  for (const std::uint64_t budget : {64u << 10, 256u << 10, 1u << 20}) {
    options_.directory = directory_ / std::to_string(budget);
    options_.disk_budget_bytes = budget;
    auto store = open_store(options_);
    for (int i = 0; i < 300; ++i) {
      ASSERT_TRUE(put(*store, context_, std::to_string(i), std::string(2000, 'x')).is_ok());
      if (i % 10 == 0) {
        ASSERT_TRUE(store->flush().is_ok());
      }
    }
    ASSERT_TRUE(store->flush().is_ok());
    const auto totals = store->totals().value();
    // What a directory without entries takes.
    EXPECT_LE(totals.size_bytes, static_cast<std::int64_t>(budget + budget / 16 + (128 << 10)));
    if (budget >= 1 << 20) {
      EXPECT_GT(totals.entries, 150);
    }
  }
}

}  // namespace
}  // namespace modcache::store
