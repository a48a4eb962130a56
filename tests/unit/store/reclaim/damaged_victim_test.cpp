// SPDX-License-Identifier: Apache-2.0
//
// What becomes of a damaged segment when room is made.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "store/directory/directory.h"
#include "support/directory_bytes.h"
#include "support/store_fixture.h"

namespace modcache::store {
namespace {

using testing::get;
using testing::open_store;
using testing::put;
using DamagedVictimTest = testing::StoreTest;

constexpr std::size_t kGarbageBytes = 100'000;

// One segment has what was replaced and cleared, the other what did that, and is damaged there.
TEST_F(DamagedVictimTest, a_damaged_segment_that_is_emptied_brings_nothing_back) {
  const Directory directory(fs::posix_file_system(), directory_.path());
  std::uint64_t later = 0;
  std::uint64_t damaged_offset[2] = {};
  {
    auto one = open_store(directory_.path());
    for (const char* key : {"replaced", "cleared", "stays"}) {
      ASSERT_TRUE(put(*one, context_, key, "old").is_ok());
    }
    ASSERT_TRUE(one->flush().is_ok());
    const std::uint64_t earlier = directory.segments().value().at(0);
    auto two = open_store(directory_.path());
    ASSERT_TRUE(put(*two, context_, "first", "x").is_ok() && two->flush().is_ok());
    const auto ids = directory.segments().value();
    ASSERT_EQ(ids.size(), 2u);
    later = ids[0] == earlier ? ids[1] : ids[0];
    const auto size = [&] { return std::filesystem::file_size(directory.segment_path(later)); };
    damaged_offset[0] = size();
    ASSERT_TRUE(put(*two, context_, "replaced", "new").is_ok() && two->flush().is_ok());
    damaged_offset[1] = size();
    ASSERT_EQ(two->clear({"scope", "cleared"}).value(), 1);
    for (int i = 0; i < 10; ++i) {
      ASSERT_TRUE(
          put(*two, context_, "garbage " + std::to_string(i), std::string(kGarbageBytes, 'g'))
              .is_ok());
    }
    ASSERT_TRUE(two->flush().is_ok());
    ASSERT_EQ(two->clear({"scope", "garbage"}).value(), 10);
  }
  for (const std::uint64_t offset : damaged_offset) {
    testing::flip_bit(directory.segment_path(later), offset + 20);
  }
  {
    auto store = open_store(directory_.path());
    ASSERT_TRUE(store->evict(directory.size_bytes().value() - 5 * kGarbageBytes).is_ok());
    ASSERT_FALSE(std::filesystem::exists(directory.segment_path(later)));
    EXPECT_EQ(get(*store, context_, "stays"), "old");
  }
  std::filesystem::remove(directory_ / "index.sqlite");
  auto rebuilt = open_store(directory_.path());
  EXPECT_EQ(get(*rebuilt, context_, "stays"), "old");
  EXPECT_EQ(get(*rebuilt, context_, "replaced"), "<missing>");
  EXPECT_EQ(get(*rebuilt, context_, "cleared"), "<missing>");
}

}  // namespace
}  // namespace modcache::store
