// SPDX-License-Identifier: Apache-2.0
#include "cache/disk_tier.h"

#include <gtest/gtest.h>
#include <sqlite3.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fs/posix_file_system.h"
#include "support/captured_log.h"
#include "support/child_process.h"
#include "support/directory_bytes.h"
#include "support/disk_tier_fixture.h"
#include "support/temporary_directory.h"
#include "support/text_value.h"

namespace modcache::cache {
namespace {

using Clock = std::chrono::steady_clock;
using testing::ChildProcess;
using testing::text_entry;
using testing::text_of;

using testing::DiskTierTest;

TEST_F(DiskTierTest, touches_nothing_until_it_is_needed) {
  const auto tier = open();
  EXPECT_EQ(tier->removals(), 0u);
  EXPECT_EQ(tier->totals(false).entries, 0);
  EXPECT_TRUE(tier->flush());
  tier->close();
  EXPECT_FALSE(std::filesystem::exists(directory_ / "cache"));
}

TEST_F(DiskTierTest, gives_back_all_parts_of_an_entry) {
  const auto tier = open();
  const std::string key("a \0 key", 7);
  const auto sequence = put(*tier, key, text_entry("text", "float32[2]", 123));
  ASSERT_NE(sequence, 0u);
  for (int turn = 0; turn < 2; ++turn) {
    const HeldEntry found = find(*tier, key, Access::kRead);
    EXPECT_EQ(text_of(found.entry), "text");
    ASSERT_NE(found.entry, nullptr);
    EXPECT_EQ(found.entry->signature, "float32[2]");
    EXPECT_EQ(found.entry->run_us, 123);
    EXPECT_EQ(found.sequence, sequence);
    tier->close();  // the second turn reads the files
  }
  EXPECT_EQ(get(*tier, "another"), "<missing>");
}

TEST_F(DiskTierTest, keeps_empty_values_and_signatures_that_look_like_headers) {
  const auto tier = open();
  const std::string signature(70'000, 's');
  ASSERT_NE(put(*tier, "empty", text_entry("", "")), 0u);
  ASSERT_NE(put(*tier, "long", text_entry("text", signature)), 0u);
  tier->close();
  EXPECT_EQ(get(*tier, "empty"), "");
  EXPECT_EQ(find(*tier, "long", Access::kRead).entry->signature, signature);
}

TEST_F(DiskTierTest, replaces_and_knows_what_is_current) {
  const auto tier = open();
  const auto first = put(*tier, "key", text_entry("one"));
  const auto known = [&tier](store::Sequence sequence) {
    return DiskTier::Known{sequence, tier->removals()};
  };
  EXPECT_TRUE(is_current(*tier, "key", known(first)));
  const auto second = put(*tier, "key", text_entry("two"));
  EXPECT_FALSE(is_current(*tier, "key", known(first)));
  EXPECT_TRUE(is_current(*tier, "key", known(second)));
  EXPECT_FALSE(is_current(*tier, "key", {second, ~tier->removals()})) << "of another directory";
  EXPECT_EQ(get(*tier, "key"), "two");
}

TEST_F(DiskTierTest, clears_what_the_filter_names) {
  const auto tier = open();
  ASSERT_NE(put(*tier, "a1", text_entry("1")), 0u);
  ASSERT_NE(put(*tier, "b1", text_entry("2")), 0u);
  EXPECT_EQ(tier->clear({"", "a"}), 1);
  EXPECT_FALSE(contains(*tier, "a1"));
  EXPECT_TRUE(contains(*tier, "b1"));
  ASSERT_TRUE(tier->flush());
  EXPECT_EQ(tier->totals(true).entries, 1);
}

TEST_F(DiskTierTest, a_reader_makes_no_directory_and_counts_no_error_for_a_missing_one) {
  const auto tier = open();
  EXPECT_EQ(get(*tier, "key", Access::kRead), "<missing>");
  EXPECT_FALSE(contains(*tier, "key"));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "cache"));
  EXPECT_EQ(count(Counter::kErrors), 0);
}

TEST_F(DiskTierTest, a_directory_opened_for_reading_takes_an_entry_when_writing_is_allowed) {
  store("old", "one");
  const auto tier = open();
  EXPECT_EQ(get(*tier, "old", Access::kRead), "one");
  EXPECT_NE(put(*tier, "new", text_entry("two")), 0u);
  EXPECT_EQ(get(*tier, "old") + get(*tier, "new"), "onetwo");
}

TEST_F(DiskTierTest, a_damaged_payload_is_a_miss_counted_and_dropped) {
  const testing::CapturedLog log;
  store("bad", "the payload to damage");
  store("good", "another one");
  damage("the payload to damage");
  const auto tier = open();
  EXPECT_EQ(get(*tier, "bad"), "<missing>");
  EXPECT_EQ(count(Counter::kCorrupt), 1);
  EXPECT_FALSE(contains(*tier, "bad"));
  EXPECT_EQ(get(*tier, "bad"), "<missing>");
  EXPECT_EQ(count(Counter::kCorrupt), 1) << "it was not dropped";
  EXPECT_EQ(get(*tier, "good"), "another one");
  EXPECT_EQ(log.about(directory_.path()).size(), 1u);
  EXPECT_NE(put(*tier, "bad", text_entry("anew")), 0u);
  EXPECT_EQ(get(*tier, "bad"), "anew");
}

// Rows of a batch are checked when a process first reads them; a single value each time.
TEST_F(DiskTierTest, a_payload_that_is_damaged_after_it_was_read_is_a_miss) {
  const testing::CapturedLog log;
  store("key", "the payload to damage");
  const auto tier = open();
  EXPECT_EQ(get(*tier, "key"), "the payload to damage");
  damage("the payload to damage");
  EXPECT_EQ(get(*tier, "key"), "<missing>");
  EXPECT_EQ(count(Counter::kCorrupt), 1);
}

TEST_F(DiskTierTest, a_reader_drops_nothing) {
  const testing::CapturedLog log;
  store("bad", "the payload to damage");
  damage("the payload to damage");
  const auto before = testing::file_bytes(directory_ / "cache/index.sqlite");
  const auto tier = open();
  EXPECT_EQ(get(*tier, "bad", Access::kRead), "<missing>");
  EXPECT_EQ(count(Counter::kCorrupt), 1);
  EXPECT_EQ(testing::file_bytes(directory_ / "cache/index.sqlite"), before);
}

TEST_F(DiskTierTest, a_value_that_cannot_be_understood_is_a_miss_counted_and_dropped) {
  class Refusing final : public testing::TextFormat {
    std::vector<Result<std::shared_ptr<const Value>>> read_all(
        Form, const FoundRows&, const std::vector<std::size_t>& rows) const override {
      std::vector<Result<std::shared_ptr<const Value>>> values;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        values.emplace_back(Status::corruption("no such value"));
      }
      return values;
    }
  };
  const testing::CapturedLog log;
  store("key", "text");
  const Refusing refusing;
  Settings settings;
  settings.dir = directory_ / "cache";
  DiskTier tier(settings, refusing, stats_);
  EXPECT_EQ(get(tier, "key"), "<missing>");
  EXPECT_EQ(count(Counter::kCorrupt), 1);
  EXPECT_FALSE(contains(tier, "key"));
}

TEST_F(DiskTierTest, a_directory_that_cannot_be_opened_is_reported_once_and_left_alone) {
  const testing::CapturedLog log;
  testing::write_file(directory_ / "file", "not a directory");
  const auto tier = tier_in(directory_ / "file/cache");
  const auto started = Clock::now();
  for (int i = 0; i < 10'000; ++i) {
    EXPECT_EQ(get(*tier, "key"), "<missing>");
    EXPECT_EQ(put(*tier, "key", text_entry("text")), 0u);
    EXPECT_FALSE(contains(*tier, "key"));
    EXPECT_TRUE(tier->flush()) << "nothing was put, so nothing is unsafe";
  }
  EXPECT_LT(Clock::now() - started, std::chrono::seconds(10));
  EXPECT_EQ(count(Counter::kErrors), 1);
  ASSERT_EQ(log.about(directory_ / "file/cache").size(), 1u);
}

// Another process holds the database's lock for as long as this test likes.
TEST_F(DiskTierTest, a_directory_that_stalls_delays_a_process_by_about_a_second_in_all) {
  const testing::CapturedLog log;
  store("old", "one");
  testing::Pipe locked;
  testing::Pipe release;
  ChildProcess locker([&] {
    release.close_writing();
    sqlite3* database = nullptr;
    const std::string path = directory_ / "cache/index.sqlite";
    if (sqlite3_open(path.c_str(), &database) != SQLITE_OK) return 1;
    const int held = sqlite3_exec(database, "PRAGMA locking_mode=EXCLUSIVE; BEGIN EXCLUSIVE;",
                                  nullptr, nullptr, nullptr);
    locked.write(held);
    char end = 0;
    (void)release.read(end);
    return 0;
  });
  int held = -1;
  ASSERT_TRUE(locked.read(held));
  ASSERT_EQ(held, SQLITE_OK);

  // A busy machine delays one process or another; a tier that goes on asking delays each.
  constexpr std::chrono::seconds kAboutASecond{2};
  auto least = Clock::duration::max();
  const auto begun = Clock::now();
  while (least >= kAboutASecond && Clock::now() - begun < std::chrono::seconds(20)) {
    const auto started = Clock::now();
    const auto tier = open();
    for (int i = 0; i < 100; ++i) {
      const std::string key = std::to_string(i);
      (void)get(*tier, key);
      (void)put(*tier, key, text_entry("text"));
      (void)contains(*tier, key);
      (void)tier->clear({"", "x"});
    }
    least = std::min(least, Clock::now() - started);
  }
  EXPECT_LT(least, kAboutASecond);
  EXPECT_GE(count(Counter::kErrors), 1);
  EXPECT_EQ(count(Counter::kCorrupt), 0);
  release.close_writing();
  EXPECT_EQ(locker.wait(), 0);
}

#if MODCACHE_CAN_FORK_WITH_THREADS

TEST_F(DiskTierTest, parent_and_forked_child_use_one_directory) {
  const auto tier = open();
  ASSERT_NE(put(*tier, "parent's", text_entry("one")), 0u);
  ASSERT_TRUE(tier->flush());
  ChildProcess child([&] {
    if (get(*tier, "parent's") != "one") return 1;
    if (put(*tier, "child's", text_entry("two")) == 0) return 2;
    return tier->flush() ? 0 : 3;
  });
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(get(*tier, "child's"), "two");
  EXPECT_NE(put(*tier, "later", text_entry("three")), 0u);
  EXPECT_TRUE(tier->flush());
  EXPECT_EQ(count(Counter::kErrors), 0);
}

TEST_F(DiskTierTest, a_child_may_let_go_of_the_tier_without_harm_to_the_parent) {
  auto tier = open();
  ASSERT_NE(put(*tier, "key", text_entry("one")), 0u);
  ChildProcess child([&] {
    tier->close();
    tier.reset();
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
  ASSERT_TRUE(tier->flush());
  tier->close();
  EXPECT_EQ(get(*tier, "key"), "one");
}

#endif  // MODCACHE_CAN_FORK_WITH_THREADS

TEST_F(DiskTierTest, finds_rows_with_the_parts_of_their_headers) {
  const auto tier = open();
  const EntryPtr one = text_entry("one", "float32[2]", 5);
  const auto sequences =
      put_all(*tier, {"a", "b", "c"}, {one, text_entry("two", "float32[2]"), one});
  ASSERT_EQ(sequences.size(), 3u);
  for (int turn = 0; turn < 2; ++turn) {
    const FoundRows rows = find_rows(*tier, {"b", "none", "a", "c"}, Access::kRead);
    EXPECT_FALSE(rows.has(1));
    for (const std::size_t i : {0, 2, 3}) {
      ASSERT_TRUE(rows.has(i));
      EXPECT_EQ(rows.header(i).signature, "float32[2]");
      EXPECT_EQ(rows.header(i).value_header, testing::TextValue::kHeader);
      EXPECT_EQ(rows.header_index(i), 0u);
    }
    EXPECT_EQ(rows.sequence(2), sequences[0]);
    EXPECT_EQ(rows.run_us(2), 5);
    const std::uint64_t removals = tier->removals();
    EXPECT_EQ(are_current(
                  *tier, {"a", "b", "a"},
                  {{sequences[0], removals}, {sequences[0], removals}, {sequences[0], ~removals}}),
              (std::vector<bool>{true, false, false}));
    ASSERT_TRUE(tier->flush());
  }
}

// As a value that takes long to encode.
class SlowValue final : public Value {
 public:
  std::size_t size_bytes() const override { return 1; }
  std::size_t payload_size_bytes() const override { return 1; }
  Written write(codec::Codec) const override {
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
    return {std::string(testing::TextValue::kHeader), share_bytes("slow")};
  }
};

TEST_F(DiskTierTest, rows_that_no_directory_can_hold_are_errors_and_no_reason_to_leave_it_alone) {
  const auto tier = open();
  const std::string signature(store::kMaxHeaderSizeBytes, 's');
  const EntryPtr slow =
      std::make_shared<const Entry>(Entry{std::make_shared<const SlowValue>(), signature, 5});
  const auto sequences =
      put_all(*tier, {"a", "b", "c"}, {text_entry("one"), slow, text_entry("three")});
  EXPECT_NE(sequences[0], 0u);
  EXPECT_EQ(sequences[1], 0u);
  EXPECT_NE(sequences[2], 0u);
  EXPECT_EQ(put(*tier, "b", slow), 0u);
  EXPECT_EQ(count(Counter::kErrors), 2) << "one for each call";
  EXPECT_EQ(get(*tier, "a"), "one");
  EXPECT_EQ(get(*tier, "b"), "<missing>");
  EXPECT_EQ(get(*tier, "c"), "three");
}

TEST_F(DiskTierTest, finds_no_rows_where_there_is_no_directory) {
  const auto tier = open();
  const FoundRows rows = find_rows(*tier, {"a"}, Access::kRead);
  EXPECT_FALSE(rows.has(0));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "cache"));
  EXPECT_EQ(count(Counter::kErrors), 0);
}

TEST_F(DiskTierTest, a_row_whose_header_is_none_is_dropped_by_calls_that_may_write) {
  store("good", "text");
  {
    store::StoreOptions options;
    options.directory = directory_ / "cache";
    auto store = store::Store::open(fs::posix_file_system(), std::move(options));
    ASSERT_TRUE(store.is_ok());
    ASSERT_TRUE(store.value()->put({id("bad"), "x", share_bytes("text"), 0}).is_ok());
  }
  const auto tier = open();
  for (const Access access : {Access::kRead, Access::kWrite}) {
    EXPECT_EQ(tier->totals(true).entries, 2);
    const FoundRows rows = find_rows(*tier, {"bad", "good"}, access);
    EXPECT_FALSE(rows.has(0));
    EXPECT_TRUE(rows.has(1));
  }
  EXPECT_EQ(count(Counter::kCorrupt), 2);
  EXPECT_EQ(tier->totals(true).entries, 1);
}

}  // namespace
}  // namespace modcache::cache
