// SPDX-License-Identifier: Apache-2.0
#include "store/store.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "support/store_fixture.h"

namespace modcache::store {
namespace {

using testing::context_named;
using testing::get;
using testing::open_store;
using testing::put;

using StoreTest = testing::StoreTest;

std::string random_bytes(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

TEST_F(StoreTest, finds_nothing_in_a_new_directory) {
  auto store = open_store(directory_ / "new/nested");
  EXPECT_EQ(get(*store, context_, "key"), "<missing>");
  EXPECT_FALSE(store->is_read_only());
  EXPECT_TRUE(store->is_attached());
  EXPECT_EQ(store->totals().value().entries, 0);
}

TEST_F(StoreTest, gives_back_what_was_put_at_once_and_when_committed_and_when_reopened) {
  const std::vector<std::size_t> sizes = {0, 1, 63, 64, 65, 4096, 100000, 3 << 20};
  {
    auto store = open_store(directory_.path());
    for (const std::size_t size : sizes) {
      ASSERT_TRUE(put(*store, context_, std::to_string(size), random_bytes(size, 1)).is_ok());
      EXPECT_EQ(get(*store, context_, std::to_string(size)), random_bytes(size, 1));
    }
    ASSERT_TRUE(store->flush().is_ok());
    for (const std::size_t size : sizes) {
      EXPECT_EQ(get(*store, context_, std::to_string(size)), random_bytes(size, 1));
    }
    EXPECT_EQ(store->totals().value().entries, static_cast<std::int64_t>(sizes.size()));
  }
  auto store = open_store(directory_.path());
  for (const std::size_t size : sizes) {
    EXPECT_EQ(get(*store, context_, std::to_string(size)), random_bytes(size, 1));
  }
}

TEST_F(StoreTest, keeps_header_run_time_and_sequence) {
  auto store = open_store(directory_.path());
  const auto sequence = put(*store, context_, "key", "payload", "the header", 1234);
  ASSERT_TRUE(sequence.is_ok());
  for (int i = 0; i < 2; ++i) {
    auto found = store->find({context_, "key"});
    ASSERT_TRUE(found.is_ok());
    EXPECT_EQ(found.value()->header(), "the header");
    EXPECT_EQ(found.value()->run_us(), 1234);
    EXPECT_EQ(found.value()->sequence(), sequence.value());
    EXPECT_TRUE(store->is_current({context_, "key"}, sequence.value()));
    ASSERT_TRUE(store->flush().is_ok());
  }
}

TEST_F(StoreTest, tells_when_an_entry_was_stored) {
  auto store = open_store(directory_.path());
  ASSERT_TRUE(put(*store, context_, "key", "value").is_ok());
  const std::int64_t stored_at_us = store->find({context_, "key"}).value()->stored_at_us();
  EXPECT_GT(stored_at_us, 1'600'000'000'000'000);
  ASSERT_TRUE(store->flush().is_ok());
  EXPECT_EQ(store->find({context_, "key"}).value()->stored_at_us(), stored_at_us);
}

TEST_F(StoreTest, takes_keys_of_any_bytes_and_tells_contexts_apart) {
  auto store = open_store(directory_.path());
  const std::string key("a\0b\xff\n", 5);
  const Context other = context_named("scope", "other");
  ASSERT_TRUE(put(*store, context_, key, "one").is_ok());
  ASSERT_TRUE(put(*store, other, key, "two").is_ok());
  ASSERT_TRUE(put(*store, context_, std::string(100000, 'k'), "long").is_ok());
  ASSERT_TRUE(store->flush().is_ok());
  EXPECT_EQ(get(*store, context_, key), "one");
  EXPECT_EQ(get(*store, other, key), "two");
  EXPECT_EQ(get(*store, context_, std::string(100000, 'k')), "long");
  EXPECT_EQ(get(*store, context_, "a"), "<missing>");
}

TEST_F(StoreTest, clears_what_the_filter_names_committed_or_not) {
  auto store = open_store(directory_.path());
  const Context other = context_named("other");
  for (const char* key : {"a1", "a2", "b1"}) {
    ASSERT_TRUE(put(*store, context_, key, "x").is_ok());
    ASSERT_TRUE(put(*store, other, key, "y").is_ok());
    if (std::string(key) == "a1") {
      ASSERT_TRUE(store->flush().is_ok());
    }
  }
  EXPECT_EQ(store->clear({"scope", "a"}).value(), 2);
  EXPECT_EQ(get(*store, context_, "a1"), "<missing>");
  EXPECT_EQ(get(*store, context_, "a2"), "<missing>");
  EXPECT_EQ(get(*store, context_, "b1"), "x");
  EXPECT_EQ(get(*store, other, "a1"), "y");
  EXPECT_EQ(store->clear({"", "a"}).value(), 2);
  EXPECT_EQ(store->clear({"other", ""}).value(), 1);
  EXPECT_EQ(store->clear({}).value(), 1);
  ASSERT_TRUE(store->flush().is_ok());
  EXPECT_EQ(store->totals().value().entries, 0);
}

TEST_F(StoreTest, shows_another_store_what_was_committed_replaced_and_cleared) {
  auto one = open_store(directory_.path());
  auto two = open_store(directory_.path());
  ASSERT_TRUE(put(*one, context_, "key", "first").is_ok());
  ASSERT_TRUE(one->flush().is_ok());
  EXPECT_EQ(get(*two, context_, "key"), "first");
  const auto removals = two->removals();
  ASSERT_TRUE(put(*one, context_, "key", "second").is_ok());
  ASSERT_TRUE(one->flush().is_ok());
  EXPECT_GT(two->removals(), removals);
  EXPECT_EQ(get(*two, context_, "key"), "second");
  EXPECT_EQ(two->clear({}).value(), 1);
  EXPECT_EQ(get(*one, context_, "key"), "<missing>");
}

}  // namespace
}  // namespace modcache::store
