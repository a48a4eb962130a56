// SPDX-License-Identifier: Apache-2.0
#include "store/listing/listing.h"

#include <gmock/gmock.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <thread>

#include "store/directory/directory.h"
#include "support/directory_bytes.h"
#include "support/store_fixture.h"

namespace modcache::store {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::put;

class ListingTest : public testing::StoreTest {
 protected:
  std::unique_ptr<Listing> open() {
    auto listing = Listing::open(fs::posix_file_system(), directory_.path());
    EXPECT_TRUE(listing.is_ok()) << listing.status().message();
    return listing.is_ok() ? std::move(listing).value() : nullptr;
  }
  static std::vector<std::string> keys(const std::vector<ListedEntry>& entries) {
    std::vector<std::string> found;
    for (const ListedEntry& entry : entries) found.push_back(entry.key);
    return found;
  }
};

TEST_F(ListingTest, contexts_come_with_their_sums) {
  {
    const auto store = testing::open_store(directory_.path());
    ASSERT_TRUE(put(*store, context_, "a", "1234567", "head", 5).is_ok());
    ASSERT_TRUE(put(*store, context_, "b", std::string(100, 'x'), "head", 6).is_ok());
    ASSERT_TRUE(put(*store, testing::context_named("other"), "a", "", "", 0).is_ok());
    ASSERT_TRUE(put(*store, testing::context_named("cleared"), "a", "").is_ok());
    ASSERT_TRUE(store->flush().is_ok());
    ASSERT_TRUE(store->clear({"cleared", ""}).is_ok());
  }
  const auto contexts = open()->contexts().value();
  ASSERT_EQ(contexts.size(), 2U);
  EXPECT_EQ(contexts[0].context.scope, "scope");
  EXPECT_EQ(contexts[0].context.digest, context_.digest);
  EXPECT_EQ(contexts[0].context.description, context_.description);
  EXPECT_EQ(contexts[0].entries, 2);
  EXPECT_EQ(contexts[0].payload_bytes, 107);
  EXPECT_EQ(contexts[0].record_bytes, 128 + 64 + 128 + 128);
  EXPECT_EQ(contexts[0].run_us, 11);
  EXPECT_GT(contexts[0].first_stored_at_us, 0);
  EXPECT_GE(contexts[0].last_stored_at_us, contexts[0].first_stored_at_us);
  EXPECT_EQ(contexts[1].entries, 1);
}

// If their commits counted as lost transactions of the database, nothing would be found.
TEST_F(ListingTest, opens_while_others_commit) {
  const auto store = testing::open_store(directory_.path());
  ASSERT_TRUE(put(*store, context_, "first", "x").is_ok() && store->flush().is_ok());
  std::atomic<bool> is_over{false};
  std::thread writer([&] {
    for (int i = 0; !is_over; ++i) {
      (void)put(*store, context_, std::to_string(i % 100), "x");
      (void)store->flush();
    }
  });
  int found = 0;
  for (int i = 0; i < 300; ++i) {
    const auto listing = open();
    const auto contexts = listing->contexts().value();
    if (contexts.empty()) continue;
    const auto page = listing->page(contexts[0], "first", 1);
    if (page.is_ok() && !page.value().empty()) ++found;
  }
  is_over = true;
  writer.join();
  EXPECT_EQ(found, 300);
}

TEST_F(ListingTest, pages_come_in_the_order_of_keys_and_meet) {
  std::vector<std::string> all{std::string("\0", 1), "a", std::string("a\0", 2), "ab", "b", "\xff"};
  {
    const auto store = testing::open_store(directory_.path());
    for (const auto& key : all) ASSERT_TRUE(put(*store, context_, key, "x").is_ok());
  }
  const auto listing = open();
  const ListedContext context = listing->contexts().value().front();
  for (std::size_t limit = 1; limit <= all.size() + 1; ++limit) {
    std::vector<std::string> found;
    std::string from;
    while (true) {
      const auto page = listing->page(context, from, limit).value();
      for (const auto& key : keys(page)) found.push_back(key);
      if (page.size() < limit) break;
      from = Listing::key_after(page.back().key);
    }
    EXPECT_EQ(found, all) << limit;
  }
  EXPECT_THAT(keys(listing->page(context, "ab", 2).value()), ElementsAre("ab", "b"));
}

TEST_F(ListingTest, entries_say_where_they_lie) {
  {
    const auto store = testing::open_store(directory_.path());
    ASSERT_TRUE(put(*store, context_, "a", "1234567", "head", 5).is_ok());
  }
  const auto listing = open();
  const auto page = listing->page(listing->contexts().value().front(), "", 10).value();
  ASSERT_EQ(page.size(), 1U);
  EXPECT_EQ(page[0].location.payload_size_bytes, 7U);
  EXPECT_EQ(page[0].location.header_size_bytes, 4U);
  EXPECT_EQ(page[0].location.run_us, 5);
  EXPECT_GT(page[0].location.sequence, 0U);
  const Directory directory(fs::posix_file_system(), directory_.path());
  EXPECT_THAT(directory.segments().value(), ElementsAre(page[0].location.segment));
}

TEST_F(ListingTest, it_sees_what_a_writer_commits_meanwhile) {
  const auto store = testing::open_store(directory_.path());
  const auto listing = open();
  EXPECT_THAT(listing->contexts().value(), IsEmpty());
  ASSERT_TRUE(put(*store, context_, "a", "x").is_ok());
  ASSERT_TRUE(store->flush().is_ok());
  EXPECT_EQ(listing->contexts().value().size(), 1U);
}

TEST_F(ListingTest, it_changes_no_byte) {
  { ASSERT_TRUE(put(*testing::open_store(directory_.path()), context_, "a", "x").is_ok()); }
  const auto before = testing::all_bytes(directory_.path());
  EXPECT_EQ(open()->contexts().value().size(), 1U);
  EXPECT_EQ(testing::all_bytes(directory_.path()), before);
}

TEST_F(ListingTest, without_a_database_the_segments_are_read) {
  { ASSERT_TRUE(put(*testing::open_store(directory_.path()), context_, "a", "x").is_ok()); }
  for (const char* file : {"/index.sqlite", "/index.sqlite-wal", "/index.sqlite-shm"}) {
    std::filesystem::remove(directory_.path() + file);
  }
  EXPECT_EQ(open()->contexts().value().front().entries, 1);
  EXPECT_FALSE(std::filesystem::exists(directory_ / "index.sqlite"));
}

TEST_F(ListingTest, a_directory_that_is_not_there_is_not_made) {
  const std::string path = directory_ / "none";
  EXPECT_TRUE(Listing::open(fs::posix_file_system(), path).is_not_found());
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace modcache::store
