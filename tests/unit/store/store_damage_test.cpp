// SPDX-License-Identifier: Apache-2.0
//
// Whatever happens to the files, no value is wrong, and the directory opens.
#include <gmock/gmock.h>

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "store/control/directory_mode.h"
#include "store/index/database.h"
#include "store/index/index.h"
#include "support/directory_bytes.h"
#include "support/sealing.h"
#include "support/store_fixture.h"

namespace modcache::store {
namespace {

using testing::all_bytes;
using ::testing::AnyOf;
using testing::context_named;
using testing::get;
using ::testing::HasSubstr;
using testing::open_store;
using testing::put;
using testing::segment_files;
using ::testing::StartsWith;

std::string value_of(int i) {
  return std::string(500 + 10 * static_cast<std::size_t>(i), 'a') + std::to_string(i);
}

class StoreDamageTest : public testing::StoreTest {
 protected:
  static constexpr int kEntries = 20;

  void fill() {
    auto store = open_store(directory_.path());
    for (int i = 0; i < kEntries; ++i) {
      ASSERT_TRUE(put(*store, context_, std::to_string(i), value_of(i)).is_ok());
    }
    ASSERT_TRUE(store->flush().is_ok());
  }
  // Returns how many entries are right; none may be wrong.
  int count_right(Store& store) {
    int right = 0;
    for (int i = 0; i < kEntries; ++i) {
      const std::string value = get(store, context_, std::to_string(i));
      EXPECT_THAT(value, AnyOf(value_of(i), StartsWith("<")));
      if (value == value_of(i)) ++right;
    }
    return right;
  }
  std::string database() const { return directory_ / "index.sqlite"; }
};

TEST_F(StoreDamageTest, rebuilds_a_deleted_database) {
  fill();
  for (const char* suffix : {"", "-wal", "-shm"}) std::filesystem::remove(database() + suffix);
  auto store = open_store(directory_.path());
  EXPECT_EQ(count_right(*store), kEntries);
  EXPECT_EQ(store->totals().value().entries, kEntries);
}

TEST_F(StoreDamageTest, does_not_take_the_log_of_a_lost_database_for_that_of_the_new_one) {
  {
    auto store = open_store(directory_.path());
    for (int i = 0; i < kEntries; ++i) {
      ASSERT_TRUE(put(*store, context_, std::to_string(i), value_of(i)).is_ok());
    }
    ASSERT_TRUE(store->flush().is_ok());
    ASSERT_GT(std::filesystem::file_size(database() + "-wal"), 0u);
    std::filesystem::copy(database() + "-wal", database() + ".kept");
  }
  std::filesystem::remove(database());
  std::filesystem::rename(database() + ".kept", database() + "-wal");
  auto store = open_store(directory_.path());
  EXPECT_EQ(count_right(*store), kEntries);
}

TEST_F(StoreDamageTest, rebuilds_a_database_of_garbage_or_of_somebody_else) {
  fill();
  std::mt19937 random(1);
  std::string noise(40000, '\0');
  for (char& byte : noise) byte = static_cast<char>(random());
  const std::string intact = testing::file_bytes(database());
  std::string half_noise = intact;
  half_noise.replace(4096, 8192, noise, 0, 8192);
  std::string foreign = intact;
  foreign[68] = 'x';
  for (const std::string& bytes :
       {std::string(), noise, half_noise, foreign, intact.substr(0, 50), intact.substr(0, 5000)}) {
    for (const char* suffix : {"-wal", "-shm"}) std::filesystem::remove(database() + suffix);
    testing::write_file(database(), bytes);
    auto store = open_store(directory_.path());
    ASSERT_NE(store, nullptr);
    EXPECT_EQ(count_right(*store), kEntries) << bytes.size();
  }
}

TEST_F(StoreDamageTest, leaves_a_database_that_breaks_while_it_is_used_and_rebuilds_it_next_time) {
  // The database is too large to be read whole when it is opened, and then to be answered from
  // memory.
  const auto key = [](int i) { return std::to_string(i) + std::string(900, 'k'); };
  {
    auto store = open_store(directory_.path());
    for (int i = 0; i < 2000; ++i) ASSERT_TRUE(put(*store, context_, key(i), "value").is_ok());
  }
  auto store = open_store(directory_.path());
  EXPECT_EQ(store->totals().value().entries, 2000);
  auto other = open_store(directory_.path());
  std::string bytes = testing::file_bytes(database());
  ASSERT_GT(bytes.size(), 300u * 4096);
  const std::size_t intact = 12 * 4096;
  {
    std::fstream file(database(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(intact));
    file << std::string(bytes.size() - intact, 'x');
  }
  // A hit needs no database.
  EXPECT_EQ(get(*store, context_, key(1000)), "value");
  ASSERT_TRUE(put(*store, context_, key(1000), "value").is_ok());
  EXPECT_FALSE(store->flush().is_ok());
  EXPECT_FALSE(store->is_attached());
  EXPECT_FALSE(put(*store, context_, "new", "value").is_ok());
  EXPECT_FALSE(other->is_attached());
  auto next = open_store(directory_.path());
  EXPECT_EQ(get(*next, context_, key(1000)), "value");
  EXPECT_EQ(next->totals().value().entries, 2000);
}

TEST_F(StoreDamageTest, rebuilds_what_was_replaced_and_cleared_as_it_was) {
  const Context other = context_named("other");
  {
    auto store = open_store(directory_.path());
    for (const char* value : {"old", "new"}) {
      ASSERT_TRUE(put(*store, context_, "replaced", value).is_ok());
      ASSERT_TRUE(store->flush().is_ok());
    }
    ASSERT_TRUE(put(*store, context_, "cleared", "x").is_ok());
    ASSERT_TRUE(put(*store, other, "cleared", "kept").is_ok());
    ASSERT_TRUE(store->flush().is_ok());
    ASSERT_EQ(store->clear({"scope", "clear"}).value(), 1);
    ASSERT_TRUE(put(*store, context_, "cleared too", "after the clear").is_ok());
    ASSERT_TRUE(store->flush().is_ok());
  }
  std::filesystem::remove(database());
  for (int round = 0; round < 2; ++round) {
    auto store = open_store(directory_.path());
    EXPECT_EQ(get(*store, context_, "replaced"), "new");
    EXPECT_EQ(get(*store, context_, "cleared"), "<missing>");
    EXPECT_EQ(get(*store, other, "cleared"), "kept");
    EXPECT_EQ(get(*store, context_, "cleared too"), "after the clear");
    EXPECT_EQ(store->clear({"nobody", ""}).value(), 0);
    std::filesystem::remove(database());
  }
}

TEST_F(StoreDamageTest, does_not_bring_back_what_was_cleared_with_its_segments) {
  fill();
  open_store(directory_.path())->clear({}).value();
  std::filesystem::remove(database());
  auto store = open_store(directory_.path());
  EXPECT_EQ(count_right(*store), 0);
  EXPECT_EQ(store->totals().value().entries, 0);
}

// A record that was cut short claims more bytes than it has. If its claim happens to end at a later
// record, a rebuild would take it for complete and skip what lies in between.
TEST_F(StoreDamageTest, writes_nothing_behind_a_record_that_was_cut_short) {
  constexpr int kSmall = 30;
  for (std::uintmax_t lost = 64; lost <= 4096; lost += 64) {
    std::filesystem::remove_all(directory_.path());
    {
      auto store = open_store(directory_.path());
      ASSERT_TRUE(put(*store, context_, "torn", std::string(4096, 't')).is_ok());
      ASSERT_TRUE(store->flush().is_ok());
    }
    const auto segments = segment_files(directory_.path());
    ASSERT_EQ(segments.size(), 1u);
    const std::string segment = segments[0];
    std::filesystem::resize_file(segment, std::filesystem::file_size(segment) - lost);
    {
      auto store = open_store(directory_.path());
      for (int i = 0; i < kSmall; ++i) {
        ASSERT_TRUE(put(*store, context_, std::to_string(i), "small").is_ok());
      }
      ASSERT_TRUE(store->flush().is_ok());
    }
    std::filesystem::remove(database());
    auto store = open_store(directory_.path());
    for (int i = 0; i < kSmall; ++i) {
      ASSERT_EQ(get(*store, context_, std::to_string(i)), "small") << i << ", lost " << lost;
    }
    EXPECT_NE(get(*store, context_, "torn"), std::string(4096, 't'));
  }
}

TEST_F(StoreDamageTest, numbers_entries_upwards_when_the_control_page_is_lost) {
  fill();
  Sequence before = 0;
  {
    auto store = open_store(directory_.path());
    before = put(*store, context_, "before", "x").value();
  }
  for (const std::string& bytes : {std::string(), std::string(5000, 'x')}) {
    testing::write_file(directory_ / "control", bytes);
    auto store = open_store(directory_.path());
    const Sequence after = put(*store, context_, "0", "later").value();
    EXPECT_GT(after, before);
    before = after;
    ASSERT_TRUE(store->flush().is_ok());
    EXPECT_EQ(get(*store, context_, "0"), "later");
  }
}

class StoreSegmentDamageTest : public StoreDamageTest,
                               public ::testing::WithParamInterface<ReadVia> {
 protected:
  std::unique_ptr<Store> open() {
    StoreOptions options;
    options.directory = directory_.path();
    options.read_via = GetParam();
    return open_store(std::move(options));
  }
};

TEST_P(StoreSegmentDamageTest, never_gives_a_wrong_value_from_a_segment_cut_short) {
  fill();
  const std::string segment = segment_files(directory_.path()).at(0);
  auto size = std::filesystem::file_size(segment);
  auto opened_before = open();
  EXPECT_EQ(count_right(*opened_before), kEntries);
  int last = kEntries;
  while (size > 0) {
    size = size < 3000 ? 0 : size - 3000;
    std::filesystem::resize_file(segment, size);
    const int right = count_right(*opened_before);
    EXPECT_LE(right, last);
    last = right;
    EXPECT_EQ(count_right(*open()), right);
  }
  EXPECT_EQ(last, 0);
}

TEST_P(StoreSegmentDamageTest, never_gives_a_wrong_value_from_a_segment_with_flipped_bits) {
  fill();
  const std::string segment = segment_files(directory_.path()).at(0);
  const auto size = std::filesystem::file_size(segment);
  for (std::uint64_t offset = 64; offset < size; offset += 97) {
    testing::flip_bit(segment, offset);
    EXPECT_GE(count_right(*open()), kEntries - 1) << offset;
    testing::flip_bit(segment, offset);
  }
  testing::flip_bit(segment, 30);
  EXPECT_EQ(count_right(*open()), 0);
}

TEST_P(StoreSegmentDamageTest, calls_a_lost_segment_corruption_and_forgets_what_it_held) {
  fill();
  std::filesystem::remove(segment_files(directory_.path()).at(0));
  auto store = open();
  auto found = store->find({context_, "0"});
  EXPECT_EQ(found.status().code(), StatusCode::kCorruption);
  ASSERT_TRUE(store->drop({context_, "0"}, 0).is_ok());
  EXPECT_EQ(get(*store, context_, "0"), "<missing>");
  EXPECT_EQ(store->totals().value().entries, kEntries - 1);
}

TEST_P(StoreSegmentDamageTest, does_not_bring_back_what_a_damaged_entry_had_replaced) {
  {
    auto store = open();
    ASSERT_TRUE(put(*store, context_, "key", "old").is_ok());
    ASSERT_TRUE(store->flush().is_ok());
    auto newer = put(*store, context_, "key", "new");
    ASSERT_TRUE(store->flush().is_ok());
    ASSERT_TRUE(store->drop({context_, "key"}, newer.value()).is_ok());
  }
  std::filesystem::remove(directory_ / "index.sqlite");
  EXPECT_EQ(get(*open(), context_, "key"), "<missing>");
}

TEST_P(StoreSegmentDamageTest, replaces_a_damaged_entry) {
  fill();
  const std::string segment = segment_files(directory_.path()).at(0);
  testing::flip_bit(segment, std::filesystem::file_size(segment) - 200);
  auto store = open();
  const std::string last = std::to_string(kEntries - 1);
  auto found = store->find({context_, last});
  ASSERT_TRUE(found.is_ok());
  std::string payload(found.value()->payload_size_bytes(), '?');
  EXPECT_EQ(found.value()->read_payload(payload.data()).code(), StatusCode::kCorruption);
  ASSERT_TRUE(store->drop({context_, last}, found.value()->sequence() + 1).is_ok());
  EXPECT_TRUE(store->find({context_, last}).is_ok());
  ASSERT_TRUE(store->drop({context_, last}, found.value()->sequence()).is_ok());
  EXPECT_EQ(get(*store, context_, last), "<missing>");
  ASSERT_TRUE(put(*store, context_, last, "anew").is_ok());
  ASSERT_TRUE(store->flush().is_ok());
  EXPECT_EQ(get(*store, context_, last), "anew");
}

TEST_P(StoreSegmentDamageTest, keeps_an_entry_readable_after_it_was_cleared) {
  fill();
  auto store = open();
  auto found = store->find({context_, "3"});
  ASSERT_TRUE(found.is_ok());
  EXPECT_EQ(open()->clear({}).value(), kEntries);
  EXPECT_EQ(get(*store, context_, "3"), "<missing>");
  store = nullptr;
  std::string payload(found.value()->payload_size_bytes(), '?');
  EXPECT_TRUE(found.value()->read_payload(payload.data()).is_ok());
  EXPECT_EQ(payload, value_of(3));
}

INSTANTIATE_TEST_SUITE_P(ReadVia, StoreSegmentDamageTest,
                         ::testing::Values(ReadVia::kMmap, ReadVia::kPread),
                         [](const auto& tested) {
                           return tested.param == ReadVia::kMmap ? "mmap" : "pread";
                         });

// Versions

class StoreVersionTest : public StoreDamageTest {
 protected:
  void expect_refused_and_untouched() {
    const auto before = all_bytes(directory_.path());
    StoreOptions options;
    options.directory = directory_.path();
    for (const bool is_writable : {true, false}) {
      options.writable = is_writable;
      EXPECT_EQ(Store::open(fs::posix_file_system(), options).status().code(),
                StatusCode::kUnsupportedVersion);
    }
    EXPECT_EQ(set_directory_mode(fs::posix_file_system(), directory_.path(), DirectoryMode::kOff, 0)
                  .code(),
              StatusCode::kUnsupportedVersion);
    EXPECT_EQ(all_bytes(directory_.path()), before);
  }
};

TEST_F(StoreVersionTest, leaves_a_newer_and_an_older_database_alone) {
  fill();
  std::string bytes = testing::file_bytes(database());
  for (const std::int64_t version : {kUserVersion + 1, kUserVersion - 1}) {
    bytes[63] = static_cast<char>(version);  // the last byte of user_version
    testing::write_file(database(), bytes);
    expect_refused_and_untouched();
  }
}

TEST_F(StoreVersionTest, leaves_a_newer_database_alone_whose_version_is_only_in_the_log) {
  fill();
  {
    auto newer = Database::open(fs::posix_file_system(), database(), Database::Mode::kWrite, 1000);
    ASSERT_TRUE(newer.value()->execute("PRAGMA user_version=4").is_ok());
  }
  ASSERT_EQ(testing::file_bytes(database())[63], 3);
  expect_refused_and_untouched();
}

TEST_F(StoreVersionTest, leaves_a_newer_and_an_older_control_page_alone) {
  fill();
  std::string bytes = testing::file_bytes(directory_ / "control");
  for (const std::string& version : {std::string("\x03\x00\x00\x00\xfc\xff\xff\xff", 8),
                                     std::string("\x01\x00\x00\x00\xfe\xff\xff\xff", 8)}) {
    bytes.replace(8, 8, version);
    testing::write_file(directory_ / "control", bytes);
    expect_refused_and_untouched();
  }
}

TEST_F(StoreVersionTest, leaves_segments_of_another_version_alone_although_the_database_is_gone) {
  fill();
  const std::string segment = segment_files(directory_.path()).at(0);
  std::string bytes = testing::file_bytes(segment);
  bytes[9] = kSegmentFormatVersion + 1;
  testing::seal(bytes, 0, kSegmentHeaderSizeBytes);
  testing::write_file(segment, bytes);
  std::filesystem::remove(database());
  expect_refused_and_untouched();
}

}  // namespace
}  // namespace modcache::store
