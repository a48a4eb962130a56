// SPDX-License-Identifier: Apache-2.0
//
// Budgets, the queue, durability, failing disks, and directories that go away.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "store/directory/directory.h"
#include "support/directory_bytes.h"
#include "support/eventually.h"
#include "support/fault_file_system.h"
#include "support/store_fixture.h"

namespace modcache::store {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::Fault;
using testing::get;
using ::testing::HasSubstr;
using ::testing::Ne;
using testing::open_store;
using testing::put;

class StoreLimitsTest : public testing::StoreTest {
 protected:
  StoreLimitsTest() {
    options_.directory = directory_.path();
    options_.on_write_error = [this](const Status& status, std::int64_t entries) {
      const std::lock_guard<std::mutex> lock(mutex_);
      write_errors_.push_back(status.code());
      entries_lost_ += entries;
    };
  }
  std::vector<StatusCode> write_errors() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return write_errors_;
  }

  StoreOptions options_;
  std::mutex mutex_;
  std::vector<StatusCode> write_errors_;
  std::atomic<std::int64_t> entries_lost_{0};
};

TEST_F(StoreLimitsTest, keeps_within_the_budget_and_takes_more_once_there_is_room) {
  options_.disk_budget_bytes = 1 << 20;
  options_.make_policy = testing::keeping_policy;
  auto store = open_store(options_);
  int stored = 0;
  while (put(*store, context_, std::to_string(stored), std::string(20000, 'x')).value() != 0) {
    ++stored;
  }
  EXPECT_GT(stored, 30);
  EXPECT_EQ(put(*store, context_, "one more", std::string(20000, 'x')).value(), 0u);
  ASSERT_TRUE(store->flush().is_ok());
  EXPECT_EQ(store->totals().value().entries, stored);
  EXPECT_LE(store->totals().value().size_bytes, (1 << 20) + (1 << 16));
  EXPECT_EQ(store->clear({}).value(), stored);
  EXPECT_NE(put(*store, context_, "after", std::string(20000, 'x')).value(), 0u);
}

TEST_F(StoreLimitsTest, makes_segments_of_a_sixteenth_of_the_budget) {
  options_.disk_budget_bytes = 1 << 20;
  auto store = open_store(options_);
  for (int i = 0; i < 30; ++i) {
    ASSERT_TRUE(put(*store, context_, std::to_string(i), std::string(20000, 'x')).is_ok());
  }
  ASSERT_TRUE(store->flush().is_ok());
  const auto segments = testing::segment_files(directory_.path());
  EXPECT_GE(segments.size(), 10u);
  for (const std::string& segment : segments) {
    EXPECT_LE(std::filesystem::file_size(segment), (1u << 20) / 16);
  }
}

TEST_F(StoreLimitsTest, takes_an_entry_larger_than_a_segment_and_none_larger_than_the_budget) {
  options_.disk_budget_bytes = 4 << 20;
  auto store = open_store(options_);
  ASSERT_TRUE(put(*store, context_, "large", std::string(2 << 20, 'l')).is_ok());
  ASSERT_TRUE(put(*store, context_, "small", "s").is_ok());
  EXPECT_EQ(put(*store, context_, "too large", std::string(5 << 20, 'x')).value(), 0u);
  ASSERT_TRUE(store->flush().is_ok());
  EXPECT_EQ(get(*store, context_, "large"), std::string(2 << 20, 'l'));
  EXPECT_EQ(get(*store, context_, "small"), "s");
}

TEST_F(StoreLimitsTest, notes_take_a_part_of_the_budget_and_leave_the_entries) {
  options_.disk_budget_bytes = 4 << 20;
  options_.make_policy = testing::keeping_policy;
  std::atomic<std::int64_t> not_kept{0};
  options_.on_not_kept = [&](std::int64_t entries) { not_kept += entries; };
  auto store = open_store(options_);
  ASSERT_NE(put(*store, context_, "first", "x").value(), 0u);
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(store->keep_note(std::to_string(i), std::string(50000, 'n')).is_ok());
  }
  const Directory directory(fs::posix_file_system(), directory_.path());
  EXPECT_LE(directory.folder_bytes(directory.notes_path()).value(), 1u << 20);
  EXPECT_TRUE(store->find_note("99").is_ok());
  int stored = 1;
  while (put(*store, context_, std::to_string(stored), std::string(20000, 'x')).value() != 0) {
    ++stored;
  }
  EXPECT_GT(stored, 100);
  ASSERT_TRUE(store->flush().is_ok());
  for (int i = 100; i < 110; ++i) {
    ASSERT_TRUE(store->keep_note(std::to_string(i), std::string(50000, 'n')).is_ok());
  }
  EXPECT_TRUE(store->find_note("109").is_ok());
  EXPECT_LE(directory.size_bytes().value(), 4u << 20)
      << "segments " << directory.folder_bytes(directory.segments_path()).value() << ", notes "
      << directory.folder_bytes(directory.notes_path()).value() << ", log "
      << std::filesystem::file_size(directory.wal_path()) << ", stored " << stored;
  // The last ones wait to be written while the log of the database grows.
  EXPECT_EQ(store->totals().value().entries + not_kept, stored);
  EXPECT_LE(not_kept, 3);
}

TEST_F(StoreLimitsTest, takes_nothing_with_a_budget_of_nothing) {
  options_.disk_budget_bytes = 0;
  auto store = open_store(options_);
  EXPECT_EQ(put(*store, context_, "key", "x").value(), 0u);
}

TEST_F(StoreLimitsTest, refuses_impossible_arguments) {
  auto store = open_store(options_);
  EXPECT_EQ(put(*store, context_, "", "x").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(put(*store, context_, std::string(kMaxKeySizeBytes + 1, 'k'), "x").status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(
      put(*store, context_, "k", "x", std::string(kMaxHeaderSizeBytes + 1, 'h')).status().code(),
      StatusCode::kInvalidArgument);
}

TEST_F(StoreLimitsTest, of_a_batch_only_the_impossible_rows_are_not_taken) {
  for (const Durability durability : {Durability::kRelaxed, Durability::kStrict}) {
    options_.durability = durability;
    auto store = open_store(options_);
    const std::string key(kMaxKeySizeBytes + 1, 'k');
    const std::string header(kMaxHeaderSizeBytes + 1, 'h');
    std::vector<Sequence> sequences;
    const Status status = store->put_all(context_,
                                         {{key, "", share_bytes("0"), 0},
                                          {"a", "", share_bytes("1"), 0},
                                          {"b", header, share_bytes("2"), 0},
                                          {"", "", share_bytes("3"), 0},
                                          {"c", "", share_bytes("4"), 0}},
                                         sequences);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("a key has")) << "of the first";
    EXPECT_THAT(sequences, ElementsAre(0u, Ne(0u), 0u, 0u, sequences[1] + 1));
    EXPECT_EQ(get(*store, context_, "a"), "1");
    EXPECT_EQ(get(*store, context_, "b"), "<missing>");
    EXPECT_EQ(get(*store, context_, "c"), "4");
    EXPECT_EQ(store->put_all(context_, {{"", "", {}, 0}}, sequences).code(),
              StatusCode::kInvalidArgument);
    EXPECT_THAT(sequences, ElementsAre(0u));
  }
}

TEST_F(StoreLimitsTest, an_impossible_row_is_told_although_the_directory_is_full) {
  options_.disk_budget_bytes = 0;
  auto store = open_store(options_);
  std::vector<Sequence> sequences;
  const Status status = store->put_all(
      context_, {{"", "", share_bytes("1"), 0}, {"a", "", share_bytes("2"), 0}}, sequences);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(sequences, ElementsAre(0u, 0u));
}

TEST_F(StoreLimitsTest, takes_more_than_its_queue_holds_by_writing_on) {
  auto store = open_store(options_);
  options_.patience_ms = 30000;
  const std::string large(24 << 20, 'q');
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(put(*store, context_, std::to_string(i), large).is_ok());
  }
  ASSERT_TRUE(store->flush().is_ok());
  EXPECT_EQ(store->totals().value().entries, 6);
}

TEST_F(StoreLimitsTest, makes_a_strict_put_safe_before_it_returns) {
  options_.durability = Durability::kStrict;
  auto store = open_store(options_);
  auto other = open_store(directory_.path());
  ASSERT_TRUE(put(*store, context_, "key", "value").is_ok());
  EXPECT_EQ(get(*other, context_, "key"), "value");
}

// A row's record must be on the disk before the row is: first bytes, then names, then rows.
TEST_F(StoreLimitsTest, syncs_in_an_order_that_survives_power_loss) {
  testing::FaultFileSystem files(fs::posix_file_system());
  auto store = open_store(options_, files);
  ASSERT_TRUE(put(*store, context_, "key", "value").is_ok());
  (void)files.take_syncs();
  ASSERT_TRUE(store->flush().is_ok());
  const std::string segment =
      std::filesystem::path(testing::segment_files(directory_.path()).at(0)).filename();
  const std::string directory = std::filesystem::path(directory_.path()).filename();
  EXPECT_THAT(files.take_syncs(), ElementsAre(segment, "segments", "index.sqlite-wal", directory));
  ASSERT_TRUE(put(*store, context_, "another", "value").is_ok());
  ASSERT_TRUE(store->flush().is_ok());
  EXPECT_THAT(files.take_syncs(), ElementsAre(segment, "index.sqlite-wal", directory));
}

TEST_F(StoreLimitsTest, leaves_no_files_behind_on_a_full_disk) {
  testing::FaultFileSystem files(fs::posix_file_system());
  auto store = open_store(options_, files);
  for (int i = 0; i < 5; ++i) {
    files.fail_at(2, Fault::kNoSpace);  // the file can be made, its header not be written
    ASSERT_TRUE(put(*store, context_, "key", "value").is_ok());
    EXPECT_EQ(store->flush().code(), StatusCode::kNoSpace);
    EXPECT_EQ(files.failures(), 1);
  }
  EXPECT_TRUE(testing::segment_files(directory_.path()).empty());
}

TEST_F(StoreLimitsTest, clears_a_full_disk) {
  testing::FaultFileSystem files(fs::posix_file_system());
  auto store = open_store(options_, files);
  ASSERT_TRUE(put(*store, context_, "key", "value").is_ok());
  ASSERT_TRUE(store->flush().is_ok());
  files.fail_at(1, Fault::kNoSpace);  // the record of the clear finds no room
  auto removed = store->clear({});
  ASSERT_TRUE(removed.is_ok()) << removed.status().message();
  EXPECT_EQ(files.failures(), 1);
  EXPECT_EQ(removed.value(), 1);
  EXPECT_EQ(get(*store, context_, "key"), "<missing>");
}

TEST_F(StoreLimitsTest, clears_a_full_disk_with_nothing_on_it) {
  testing::FaultFileSystem files(fs::posix_file_system());
  auto store = open_store(options_, files);
  for (int i = 0; i < 2; ++i) {
    files.fail_at(1, Fault::kNoSpace);  // the record of the clear finds no room
    auto removed = store->clear({"", "prefix", 0});
    ASSERT_TRUE(removed.is_ok()) << removed.status().message();
    EXPECT_EQ(removed.value(), 0);
  }
  EXPECT_EQ(files.failures(), 1) << "nothing comes before the first clear of all";
}

TEST_F(StoreLimitsTest, a_clear_holds_nothing_of_what_it_removes_to_make_room_for_its_record) {
  testing::FaultFileSystem files(fs::posix_file_system());
  auto store = open_store(options_, files);
  ASSERT_TRUE(put(*store, context_, "key", "value").is_ok());
  ASSERT_TRUE(store->flush().is_ok());
  EXPECT_EQ(get(*store, context_, "key"), "value");
  files.fail_at(1, Fault::kNoSpace);
  std::vector<std::size_t> held;
  files.faults().watch(
      [&](std::int64_t) { held.push_back(testing::unlinked_files_held(directory_.path())); });
  ASSERT_TRUE(store->clear({}).is_ok());
  files.faults().watch(nullptr);
  ASSERT_GT(held.size(), 2u);
  EXPECT_EQ(held.back(), 0u);
}

// Ten times the promise, which a busy machine lets it keep for one of the entries.
TEST_F(StoreLimitsTest, commits_by_itself_within_a_tenth_of_a_second) {
  using Clock = std::chrono::steady_clock;
  auto store = open_store(options_);
  auto other = open_store(directory_.path());
  const auto end = Clock::now() + std::chrono::seconds(30);
  auto least = Clock::duration::max();
  for (int i = 0; least >= std::chrono::seconds(1) && Clock::now() < end; ++i) {
    const std::string key = std::to_string(i);
    const auto begin = Clock::now();
    ASSERT_TRUE(put(*store, context_, key, "value").is_ok());
    ASSERT_TRUE(testing::eventually([&] { return get(*other, context_, key) == "value"; },
                                    std::chrono::seconds(30)));
    least = std::min(least, Clock::now() - begin);
  }
  EXPECT_LT(least, std::chrono::seconds(1));
}

TEST_F(StoreLimitsTest, commits_what_is_queued_when_it_closes) {
  {
    auto store = open_store(options_);
    ASSERT_TRUE(put(*store, context_, "key", "value").is_ok());
  }
  EXPECT_EQ(get(*open_store(directory_.path()), context_, "key"), "value");
}

TEST_F(StoreLimitsTest, waits_for_a_lock_only_as_long_as_it_is_told) {
  options_.patience_ms = 20;
  auto store = open_store(options_);
  auto lock = fs::posix_file_system().open(directory_ / "lock", fs::OpenMode::kReadWrite);
  ASSERT_TRUE(lock.value()->try_lock().value());
  EXPECT_EQ(store->clear({}).status().code(), StatusCode::kBusy);
  EXPECT_EQ(Store::open(fs::posix_file_system(), options_).status().code(), StatusCode::kBusy);
  ASSERT_TRUE(put(*store, context_, "key", "value").is_ok());
  EXPECT_EQ(store->flush().code(), StatusCode::kBusy);
  EXPECT_THAT(write_errors(), Each(StatusCode::kBusy));
  lock.value()->unlock();
  ASSERT_TRUE(put(*store, context_, "key", "value").is_ok());
  EXPECT_TRUE(store->flush().is_ok());
}

TEST_F(StoreLimitsTest, notices_that_the_directory_was_removed) {
  auto store = open_store(options_);
  ASSERT_TRUE(put(*store, context_, "key", "value").is_ok());
  ASSERT_TRUE(store->flush().is_ok());
  std::filesystem::remove_all(directory_.path());
  EXPECT_FALSE(store->flush().is_ok());
  EXPECT_FALSE(store->is_attached());
  EXPECT_FALSE(put(*store, context_, "key", "value").is_ok());
  EXPECT_FALSE(store->clear({}).is_ok());
  auto next = open_store(options_);
  EXPECT_EQ(get(*next, context_, "key"), "<missing>");
  EXPECT_TRUE(put(*next, context_, "key", "again").is_ok());
  EXPECT_TRUE(next->flush().is_ok());
}

// Failing disks

TEST_F(StoreLimitsTest, opens_or_says_why_at_every_failing_call_and_opens_once_healed) {
  for (std::int64_t call = 1;; ++call) {
    const std::string path = directory_ / std::to_string(call);
    testing::FaultFileSystem files(fs::posix_file_system());
    options_.directory = path;
    files.fail_at(call, Fault::kNoSpace);
    auto store = Store::open(files, options_);
    const bool has_failed = files.failures() > 0;
    // A directory works without the index that processes share; everything else comes before it.
    const bool has_failed_early = !std::filesystem::exists(path + "/control");
    if (has_failed && has_failed_early) {
      EXPECT_EQ(store.status().code(), StatusCode::kNoSpace) << call;
    } else {
      EXPECT_TRUE(store.is_ok()) << call;
    }
    files.heal();
    auto healed = open_store(options_);
    ASSERT_NE(healed, nullptr) << call;
    ASSERT_TRUE(put(*healed, context_, "key", "value").is_ok());
    ASSERT_TRUE(healed->flush().is_ok());
    if (!has_failed) break;
    ASSERT_LT(call, 100);
  }
}

class StoreFaultTest : public StoreLimitsTest, public ::testing::WithParamInterface<Fault> {};

TEST_P(StoreFaultTest, loses_only_what_it_reports_at_every_failing_call) {
  for (const bool forever : {false, true}) {
    for (std::int64_t call = 1;; ++call) {
      options_.directory = directory_ / (std::to_string(forever) + "-" + std::to_string(call));
      entries_lost_ = 0;
      testing::FaultFileSystem files(fs::posix_file_system());
      auto store = open_store(options_, files);
      ASSERT_TRUE(put(*store, context_, "before", "safe").is_ok());
      ASSERT_TRUE(store->flush().is_ok());
      files.fail_at(call, GetParam(), forever);
      ASSERT_TRUE(put(*store, context_, "during", std::string(5000, 'd')).is_ok());
      const Status flushed = store->flush();
      auto cleared = store->clear({"no such scope", ""});
      const bool has_failed = files.failures() > 0;
      files.heal();
      EXPECT_EQ(get(*store, context_, "before"), "safe");
      const std::string during = get(*store, context_, "during");
      EXPECT_EQ(during, entries_lost_ == 0 ? std::string(5000, 'd') : "<missing>") << call;
      if (entries_lost_ > 0) {
        EXPECT_FALSE(flushed.is_ok());
      }
      ASSERT_TRUE(put(*store, context_, "after", "works").is_ok());
      ASSERT_TRUE(store->flush().is_ok()) << call;
      store = nullptr;
      std::filesystem::remove(options_.directory + "/index.sqlite");
      auto rebuilt = open_store(options_);
      EXPECT_EQ(get(*rebuilt, context_, "before"), "safe");
      EXPECT_EQ(get(*rebuilt, context_, "after"), "works");
      // A write that was cut off leaves its beginning, which a rebuild may take for the whole.
      EXPECT_THAT(get(*rebuilt, context_, "during"),
                  AnyOf(std::string(5000, 'd'), "<missing>", "<a payload fails its checksum>"));
      if (!has_failed) break;
      ASSERT_LT(call, 100);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, StoreFaultTest,
                         ::testing::Values(Fault::kNoSpace, Fault::kIoError, Fault::kShortWrite),
                         [](const auto& tested) {
                           return tested.param == Fault::kNoSpace   ? "no_space"
                                  : tested.param == Fault::kIoError ? "io_error"
                                                                    : "short_write";
                         });

}  // namespace
}  // namespace modcache::store
