// SPDX-License-Identifier: Apache-2.0
#include "store/index/index.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "support/index_fixture.h"

namespace modcache::store {
namespace {

using IndexTest = testing::IndexTest;

// The patience is longer than any test runs.
TEST_F(IndexTest, waits_for_no_reader_when_it_empties_the_log) {
  auto index = Index::open(fs::posix_file_system(), path_, Database::Mode::kWrite, 3600'000);
  ASSERT_TRUE(index.is_ok());
  auto database = Database::open(fs::posix_file_system(), path_, Database::Mode::kWrite, 0);
  ASSERT_TRUE(database.is_ok());
  ASSERT_TRUE(index.value()->commit({row(context_, "key", 1)}).is_ok());
  {
    auto transaction = Transaction::begin_reading(*database.value());
    ASSERT_TRUE(transaction.is_ok());
    EXPECT_EQ(database.value()->query_number("SELECT count(*) FROM entries").value(), 1);
    ASSERT_TRUE(index.value()->commit({row(context_, "other", 2)}).is_ok());
    EXPECT_FALSE(index.value()->checkpoint().value());
    EXPECT_GT(std::filesystem::file_size(path_ + "-wal"), 0u);
  }
  EXPECT_TRUE(index.value()->checkpoint().value());
  EXPECT_EQ(std::filesystem::file_size(path_ + "-wal"), 0u);
}

// A directory directly below "/" has such a path.
TEST_F(IndexTest, opens_by_a_path_that_begins_with_two_slashes) {
  EXPECT_TRUE(Index::open(fs::posix_file_system(), "/" + path_, Database::Mode::kWrite, 0).is_ok());
}

TEST_F(IndexTest, finds_all_of_a_row) {
  EXPECT_EQ(index_->commit({{&context_, "key", {0xc0ffee, 640, 30, 5000, 12, 77}, 1}}).value(), 0);
  auto location = index_->find(context_.digest, "key");
  ASSERT_TRUE(location.is_ok());
  EXPECT_EQ(location.value().segment, 0xc0ffeeu);
  EXPECT_EQ(location.value().offset, 640u);
  EXPECT_EQ(location.value().header_size_bytes, 30u);
  EXPECT_EQ(location.value().payload_size_bytes, 5000u);
  EXPECT_EQ(location.value().sequence, 12u);
  EXPECT_EQ(location.value().run_us, 77);
  EXPECT_TRUE(index_->find(other_.digest, "key").status().is_not_found());
  EXPECT_TRUE(index_->find(context_.digest, "ke").status().is_not_found());
  EXPECT_EQ(index_->last_sequence().value(), 12u);
}

TEST_F(IndexTest, lets_the_greatest_sequence_win_whoever_comes_last) {
  EXPECT_EQ(index_->commit({row(context_, "key", 5)}).value(), 0);
  EXPECT_EQ(index_->commit({row(context_, "key", 9)}).value(), 1);
  EXPECT_EQ(index_->commit({row(context_, "key", 7)}).value(), 0);
  EXPECT_EQ(sequence_of(context_, "key"), 9u);
  EXPECT_EQ(index_->count_entries().value(), 1);
}

TEST_F(IndexTest, keeps_count_of_what_each_segment_holds) {
  ASSERT_TRUE(
      index_->commit({row(context_, "a", 1, 1), row(context_, "b", 2, 1), row(context_, "c", 3, 2)})
          .is_ok());
  ASSERT_TRUE(index_->commit({row(context_, "a", 4, 2)}).is_ok());
  ASSERT_TRUE(index_->drop(context_.digest, "b", 2).value());
  const auto segments = facts();
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_EQ(segments[0].live_entries, 0);
  EXPECT_EQ(segments[1].live_entries, 2);
  EXPECT_EQ(index_->count_entries().value(), 2);
}

TEST_F(IndexTest, drops_only_the_sequence_that_was_meant) {
  ASSERT_TRUE(index_->commit({row(context_, "key", 5)}).is_ok());
  EXPECT_FALSE(index_->drop(context_.digest, "key", 4).value());
  EXPECT_EQ(sequence_of(context_, "key"), 5u);
  EXPECT_TRUE(index_->drop(context_.digest, "key", 5).value());
  EXPECT_EQ(sequence_of(context_, "key"), 0u);
}

TEST_F(IndexTest, lets_others_read_while_it_writes) {
  ASSERT_TRUE(index_->commit({row(context_, "key", 5)}).is_ok());
  auto reader = open(Database::Mode::kRead);
  EXPECT_TRUE(reader->find(context_.digest, "key").is_ok());
  ASSERT_TRUE(index_->commit({row(context_, "later", 6)}).is_ok());
  EXPECT_TRUE(reader->find(context_.digest, "later").is_ok());
  EXPECT_EQ(reader->commit({row(context_, "x", 7)}).status().code(), StatusCode::kIoError);
}

TEST_F(IndexTest, knows_which_entries_replaced_a_record_that_may_still_be_there) {
  const auto replaces = [&](const char* key, Sequence sequence) {
    return index_->replaces(context_.digest, key, sequence).value();
  };
  ASSERT_TRUE(index_->commit({row(context_, "new", 1), row(context_, "old", 2)}).is_ok());
  EXPECT_FALSE(replaces("new", 1));
  ASSERT_TRUE(index_->commit({row(context_, "old", 3)}).is_ok());
  EXPECT_TRUE(replaces("old", 3));
  // The same record, found again in a rebuild; then one that an earlier process overtook.
  ASSERT_TRUE(index_->commit({row(context_, "new", 1)}).is_ok());
  EXPECT_FALSE(replaces("new", 1));
  ASSERT_TRUE(index_->commit({row(context_, "newer", 9), row(context_, "newer", 8)}).is_ok());
  EXPECT_TRUE(replaces("newer", 9));
  EXPECT_TRUE(index_->replaces(context_.digest, "newer", 8).is_not_found());
}

TEST_F(IndexTest, refuses_what_is_not_its_own) {
  index_ = nullptr;
  const auto code = [&] {
    return Index::open(fs::posix_file_system(), path_, Database::Mode::kWrite, 10).status().code();
  };
  EXPECT_EQ(code(), StatusCode::kOk);
  {
    auto database = Database::open(fs::posix_file_system(), path_, Database::Mode::kWrite, 10);
    ASSERT_TRUE(database.value()->execute("PRAGMA user_version=2").is_ok());
    EXPECT_EQ(code(), StatusCode::kUnsupportedVersion);
    ASSERT_TRUE(database.value()->execute("PRAGMA user_version=3").is_ok());
    ASSERT_TRUE(database.value()->execute("PRAGMA application_id=1").is_ok());
    EXPECT_EQ(code(), StatusCode::kCorruption);
    ASSERT_TRUE(database.value()
                    ->execute("PRAGMA application_id=" + std::to_string(kApplicationId))
                    .is_ok());
    EXPECT_EQ(code(), StatusCode::kOk);
    ASSERT_TRUE(database.value()->execute("DROP TABLE clears").is_ok());
    EXPECT_EQ(code(), StatusCode::kCorruption);
  }
  std::filesystem::remove(path_ + "-wal");
  std::ofstream(path_, std::ios::binary) << std::string(5000, 'x');
  EXPECT_EQ(code(), StatusCode::kCorruption);
}

}  // namespace
}  // namespace modcache::store
