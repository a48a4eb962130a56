// SPDX-License-Identifier: Apache-2.0
#include "store/found/found_entries.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "support/directory_bytes.h"
#include "support/fault_file_system.h"
#include "support/store_fixture.h"

namespace modcache::store {
namespace {

using testing::Call;
using testing::Fault;
using testing::FaultFileSystem;
using testing::get;
using testing::open_store;
using testing::put;

class MapCopyTest : public testing::StoreTest {
 protected:
  static constexpr std::size_t kValueBytes = 20'000;
  const std::string value_ = std::string(kValueBytes, 'v');

  std::unique_ptr<Store> open(ReadVia read_via = ReadVia::kMmap) {
    StoreOptions options;
    options.directory = directory_.path();
    options.read_via = read_via;
    return open_store(std::move(options), files_);
  }
  // The value lies behind another one, and on disk.
  void fill() {
    auto store = open();
    ASSERT_TRUE(put(*store, context_, "first", "some").is_ok());
    ASSERT_TRUE(put(*store, context_, "key", value_).is_ok());
    ASSERT_TRUE(store->flush().is_ok());
  }
  FoundEntries find(Store& store) { return store.find_all(context_, {"key"}); }
  static std::string text(const std::shared_ptr<std::byte>& bytes) {
    return {reinterpret_cast<const char*>(bytes.get()), kValueBytes};
  }

  FaultFileSystem files_{fs::posix_file_system()};
};

TEST_F(MapCopyTest, what_is_written_to_a_copy_changes_no_entry) {
  fill();
  auto store = open();
  const FoundEntries found = find(*store);
  const auto copy = found.map_copy(0).value();
  ASSERT_NE(copy, nullptr);
  EXPECT_EQ(text(copy), value_);
  *copy = std::byte{'x'};
  EXPECT_EQ(text(found.map_copy(0).value()), value_);
  EXPECT_EQ(get(*store, context_, "key"), value_);
}

TEST_F(MapCopyTest, a_copy_outlives_what_was_found_and_the_entry) {
  fill();
  auto store = open();
  const auto copy = find(*store).map_copy(0).value();
  ASSERT_TRUE(store->clear({}).is_ok());
  store = nullptr;
  EXPECT_EQ(text(copy), value_);
}

TEST_F(MapCopyTest, damage_is_seen_when_the_record_is_first_read) {
  fill();
  for (const std::string& path : testing::segment_files(directory_.path())) {
    testing::flip_bit(path, testing::file_bytes(path).find(value_) + kValueBytes / 2);
  }
  auto store = open();
  const FoundEntries found = find(*store);
  EXPECT_EQ(found.map_copy(0).status().code(), StatusCode::kCorruption);
}

TEST_F(MapCopyTest, a_copy_that_was_checked_counts_as_read) {
  fill();
  auto store = open();
  ASSERT_TRUE(find(*store).map_copy(0).is_ok());
  EXPECT_NE(find(*store).verified_bytes(0), nullptr);
}

TEST_F(MapCopyTest, a_value_that_waits_to_be_written_has_to_be_read) {
  auto store = open();
  ASSERT_TRUE(put(*store, context_, "key", value_).is_ok());
  EXPECT_EQ(find(*store).map_copy(0).value(), nullptr);
}

TEST_F(MapCopyTest, where_files_are_read_by_system_calls_nothing_is_mapped) {
  fill();
  auto store = open(ReadVia::kPread);
  EXPECT_EQ(find(*store).map_copy(0).value(), nullptr);
}

TEST_F(MapCopyTest, where_nothing_can_be_mapped_it_has_to_be_read) {
  fill();
  auto store = open();
  const FoundEntries found = find(*store);
  files_.faults().fail_at(1, Fault::kIoError, /*forever=*/true, testing::calls({Call::kMap}));
  EXPECT_EQ(found.map_copy(0).value(), nullptr);
}

}  // namespace
}  // namespace modcache::store
