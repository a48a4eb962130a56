// SPDX-License-Identifier: Apache-2.0
//
// Damage that could bring back entries that were replaced or cleared.
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "store/control/control_page.h"
#include "store/index/index.h"
#include "support/verify_fixture.h"

namespace modcache::store {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using testing::get;
using ::testing::HasSubstr;
using testing::open_store;
using testing::put;
using testing::segment_files;
using testing::value_of;
using VerifyTest = testing::VerifyTest;

class LostTransactionsTest : public VerifyTest {
 protected:
  std::unique_ptr<ControlPage> control() const {
    return ControlPage::open(fs::posix_file_system(), directory_ / "control", ReadVia::kPread, true)
        .value();
  }
  // Leaves a directory whose last transactions, a replacement and a clear, are only in the log.
  void fill_log() {
    const std::string made = directory_ / "../made-" + std::to_string(::getpid());
    {
      auto store = open_store(made);
      ASSERT_TRUE(put(*store, context_, "replaced", "old").is_ok());
      ASSERT_TRUE(put(*store, context_, "cleared", "x").is_ok());
      ASSERT_TRUE(store->flush().is_ok());
    }
    auto store = open_store(made);
    ASSERT_TRUE(put(*store, context_, "replaced", "new").is_ok());
    ASSERT_TRUE(store->flush().is_ok());
    ASSERT_EQ(store->clear({"scope", "cleared"}).value(), 1);
    std::filesystem::copy(made, directory_.path(),
                          std::filesystem::copy_options::recursive |
                              std::filesystem::copy_options::overwrite_existing);
    store = nullptr;
    std::filesystem::remove_all(made);
    ASSERT_GT(std::filesystem::file_size(directory_ / "index.sqlite-wal"), 0u);
  }
  void expect_no_old_value(bool is_writable) {
    StoreOptions options;
    options.directory = directory_.path();
    options.writable = is_writable;
    auto store = open_store(options);
    EXPECT_EQ(get(*store, context_, "replaced"), "new");
    EXPECT_EQ(get(*store, context_, "cleared"), "<missing>");
  }
};

TEST_F(LostTransactionsTest, brings_back_nothing_old_when_the_log_was_removed) {
  fill_log();
  std::filesystem::remove(directory_ / "index.sqlite-wal");
  EXPECT_THAT(kinds_of(verify()), ElementsAre("database-broken"));
  expect_no_old_value(false);
  expect_no_old_value(true);
  EXPECT_TRUE(verify().is_clean());
}

TEST_F(LostTransactionsTest, brings_back_nothing_old_when_the_log_was_damaged) {
  fill_log();
  testing::flip_bit(directory_ / "index.sqlite-wal", 100);
  EXPECT_FALSE(verify().is_clean());
  expect_no_old_value(false);
  expect_no_old_value(true);
  EXPECT_TRUE(verify().is_clean());
}

// A backup of index.sqlite and control is restored, while the segments are the current ones.
class PartialRestoreTest : public LostTransactionsTest, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    LostTransactionsTest::SetUp();
    {
      auto store = open_store(directory_.path());
      ASSERT_TRUE(put(*store, context_, "replaced", "old").is_ok());
      ASSERT_TRUE(put(*store, context_, "cleared", "x").is_ok());
      ASSERT_TRUE(put(*store, context_, "kept", "y").is_ok());
    }
    for (const char* name : {"index.sqlite", "control"}) {
      std::filesystem::copy(directory_ / name, backup_ / name);
    }
    // Writes into the same segment, or into one of its own.
    std::unique_ptr<Store> other;
    if (GetParam()) {
      other = open_store(directory_.path());
      ASSERT_TRUE(put(*other, context_, "other", "z").is_ok());
      ASSERT_TRUE(other->flush().is_ok());
    }
    {
      auto store = open_store(directory_.path());
      ASSERT_TRUE(put(*store, context_, "replaced", "new").is_ok());
      ASSERT_TRUE(store->flush().is_ok());
      ASSERT_EQ(store->clear({"scope", "cleared"}).value(), 1);
    }
    other = nullptr;
    for (const char* name : {"index.sqlite", "control"}) {
      std::filesystem::copy(backup_ / name, directory_ / name,
                            std::filesystem::copy_options::overwrite_existing);
    }
    for (const char* name : {"index.sqlite-wal", "index.sqlite-shm"}) {
      std::filesystem::remove(directory_ / name);
    }
  }

  testing::TemporaryDirectory backup_;
};

TEST_P(PartialRestoreTest, gives_nothing_that_was_replaced_or_cleared_since) {
  expect_no_old_value(false);
  expect_no_old_value(true);
  auto store = open_store(directory_.path());
  EXPECT_EQ(get(*store, context_, "kept"), "y");
  ASSERT_TRUE(put(*store, context_, "replaced", "newest").is_ok());
  store = nullptr;
  EXPECT_EQ(get(*open_store(directory_.path()), context_, "replaced"), "newest");
  EXPECT_TRUE(verify().is_clean());
}

INSTANTIATE_TEST_SUITE_P(SameSegmentOrAnother, PartialRestoreTest, ::testing::Bool());

// Records of a process that died before its commit are no reason to read all segments.
TEST_F(LostTransactionsTest, takes_what_a_dead_process_did_not_commit_for_no_restore) {
  fill();
  const std::string made = directory_ / "../copy-" + std::to_string(::getpid());
  std::filesystem::copy(directory_.path(), made, std::filesystem::copy_options::recursive);
  {
    auto store = open_store(directory_.path());
    ASSERT_TRUE(put(*store, context_, "uncommitted", "u").is_ok());
  }
  // Restores the old rows; the page gave the sequence out.
  std::filesystem::copy(made + "/index.sqlite", directory_ / "index.sqlite",
                        std::filesystem::copy_options::overwrite_existing);
  std::filesystem::remove_all(made);
  const auto page = control();
  page->set_committed(page->committed() - 1);
  const auto epoch = page->epoch();
  EXPECT_EQ(get(*open_store(directory_.path()), context_, "uncommitted"), "<missing>");
  EXPECT_EQ(control()->epoch(), epoch);
}

// The segment with the new value is unreadable and the database gone: nobody knows whether the old
// value was replaced, so it is not found.
TEST_F(LostTransactionsTest,
       gives_no_value_that_may_be_outdated_when_segments_and_database_are_damaged) {
  {
    auto store = open_store(directory_.path());
    ASSERT_TRUE(put(*store, context_, "key", "old").is_ok());
    ASSERT_TRUE(store->flush().is_ok());
    auto other = open_store(directory_.path());
    ASSERT_TRUE(put(*other, context_, "key", "new").is_ok());
    ASSERT_TRUE(other->flush().is_ok());
    ASSERT_TRUE(put(*store, context_, "later", "value").is_ok());
  }
  for (const std::string& segment : segment_files(directory_.path())) {
    if (testing::file_bytes(segment).find("new") == std::string::npos) continue;
    testing::flip_bit(segment, 20);
  }
  std::filesystem::remove(directory_ / "index.sqlite");
  {
    auto store = open_store(directory_.path());
    EXPECT_EQ(get(*store, context_, "key"), "<missing>");
    EXPECT_EQ(get(*store, context_, "later"), "value");
  }
  EXPECT_TRUE(repair().after.is_clean());
  std::filesystem::remove(directory_ / "index.sqlite");
  EXPECT_EQ(get(*open_store(directory_.path()), context_, "key"), "<missing>");
}

TEST_F(LostTransactionsTest, makes_a_control_page_with_impossible_counters_anew) {
  fill();
  std::string bytes = testing::file_bytes(directory_ / "control");
  bytes[64 + 7] = '\x80';  // the highest byte of the next sequence
  testing::write_file(directory_ / "control", bytes);
  EXPECT_THAT(kinds_of(verify()), ElementsAre("control-broken"));
  {
    auto store = open_store(directory_.path());
    EXPECT_LT(put(*store, context_, "0", "later").value(), 2u << 28);
    ASSERT_TRUE(store->flush().is_ok());
    EXPECT_EQ(get(*store, context_, "0"), "later");
  }
  EXPECT_TRUE(verify().is_clean());
}

TEST_F(LostTransactionsTest, reads_no_row_with_impossible_numbers) {
  for (const char* change : {"sequence=0", "sequence=-5", "offset=-64", "payload_size=-1"}) {
    std::filesystem::remove_all(directory_.path());
    fill();
    change_rows(std::string("UPDATE entries SET ") + change + " WHERE key=CAST('3' AS BLOB)");
    std::filesystem::remove(directory_ / "index.map");  // which knows what the row was
    {
      auto store = open_store(directory_.path());
      (void)store->find_all(context_, {"3"});
      EXPECT_THAT(get(*store, context_, "3"), AnyOf(value_of(3), HasSubstr("is damaged")));
    }
    EXPECT_EQ(count_right(), kEntries) << change;
  }
}

// Records that no row leads to may have any sequence that was taken since the page was on disk.
TEST_F(LostTransactionsTest, numbers_are_not_given_out_twice_in_another_boot_or_without_the_page) {
  Sequence known = put(*open_store(directory_.path()), context_, "key", "value").value();
  EXPECT_EQ(put(*open_store(directory_.path()), context_, "key", "value").value(), ++known);
  std::filesystem::remove(directory_ / "control");
  Sequence next = put(*open_store(directory_.path()), context_, "key", "value").value();
  EXPECT_GT(next, known + (1u << 28));
  control()->set_boot(7);
  EXPECT_GT(put(*open_store(directory_.path()), context_, "key", "value").value(),
            next + (1u << 28));
  EXPECT_TRUE(verify().is_clean());
}

TEST_F(LostTransactionsTest, what_a_later_value_has_overtaken_is_superseded) {
  auto store = open_store(directory_.path());
  const Sequence first = put(*store, context_, "key", "value").value();
  ASSERT_TRUE(store->flush().is_ok());
  {
    auto index = Index::open(fs::posix_file_system(), directory_ / "index.sqlite",
                             Database::Mode::kWrite, 1000);
    const NewRow later{&context_, "key", {1, 64, 3, 5, first + 1000, 7}, 1000};
    ASSERT_TRUE(index.value()->commit({later}).is_ok());
  }
  const Sequence second = put(*store, context_, "key", "overtaken").value();
  ASSERT_LT(second, first + 1000);
  ASSERT_TRUE(store->flush().is_ok());
  EXPECT_GE(control()->superseded(), second);
}

}  // namespace
}  // namespace modcache::store
