// SPDX-License-Identifier: Apache-2.0
//
// A store that answers from the index that all processes share: how many queries it needs, and that
// every change reaches every process.
#include <gmock/gmock.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "store/control/control_page.h"
#include "store/directory/directory.h"
#include "store/index/database.h"
#include "store/shared_index/shared_index.h"
#include "support/child_process.h"
#include "support/store_fixture.h"

namespace modcache::store {
namespace {

using testing::get;
using testing::open_store;
using testing::put;

std::uint64_t queries_of(const std::function<void()>& work) {
  const std::uint64_t before = queries_run();
  work();
  return queries_run() - before;
}

class StoreIndexTest : public testing::StoreTest {
 protected:
  void fill(Store& store, int entries) {
    for (int i = 0; i < entries; ++i) {
      ASSERT_TRUE(put(store, context_, std::to_string(i), "value " + std::to_string(i)).is_ok());
    }
    ASSERT_TRUE(store.flush().is_ok());
  }
  // Returns how many entries are right.
  int found_in_batches(Store& store, int entries) {
    std::vector<std::string> names;
    for (int i = 0; i < entries; ++i) names.push_back(std::to_string(i));
    FoundEntries found = store.find_all(context_, {names.begin(), names.end()});
    int right = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (!found.has(i)) continue;
      std::string payload(found.payload_size_bytes(i), '?');
      if (found.read(i, payload.data()).is_ok() && payload == "value " + names[i]) ++right;
    }
    found.note_verified();
    return right;
  }
  // Waits until hits take no query any more, since the table is built in the background.
  void wait_for_index(Store& store) {
    for (int i = 0; i < 1000; ++i) {
      if (queries_of([&] { get(store, context_, "no such key"); }) == 0) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ADD_FAILURE() << "no index was made";
  }
};

TEST_F(StoreIndexTest, takes_no_query_for_a_hit_or_a_miss) {
  auto store = open_store(directory_.path());
  fill(*store, 300);
  EXPECT_EQ(queries_of([&] {
              EXPECT_EQ(get(*store, context_, "7"), "value 7");
              EXPECT_EQ(get(*store, context_, "no such key"), "<missing>");
              EXPECT_EQ(found_in_batches(*store, 400), 300);
              EXPECT_TRUE(store->is_current({context_, "7"},
                                            store->find({context_, "7"}).value()->sequence()));
              EXPECT_EQ(store->are_current(context_, {"7", "none"}, {1, 1}),
                        (std::vector<bool>{false, false}));
            }),
            0u);
}

TEST_F(StoreIndexTest, takes_no_query_in_a_fresh_process_either) {
  fill(*open_store(directory_.path()), 300);
  for (const bool is_writable : {true, false}) {
    testing::ChildProcess child([&] {
      StoreOptions options;
      options.directory = directory_.path();
      options.writable = is_writable;
      auto store = open_store(options);
      int wrong = 0;
      const std::uint64_t queries = queries_of([&] {
        wrong += found_in_batches(*store, 400) == 300 ? 0 : 1;
        wrong += get(*store, context_, "7") == "value 7" ? 0 : 2;
        wrong += get(*store, context_, "no such key") == "<missing>" ? 0 : 4;
      });
      return wrong + (queries == 0 ? 0 : 8);
    });
    EXPECT_EQ(child.wait(), 0) << is_writable;
  }
}

TEST_F(StoreIndexTest, shows_the_changes_of_other_processes_at_their_next_call) {
  testing::WaitingChild child([&] {
    auto other = open_store(directory_.path());
    if (get(*other, context_, "3") != "value 3") return 1;
    if (!put(*other, context_, "3", "replaced").is_ok()) return 2;
    if (!put(*other, context_, "new", "added").is_ok()) return 3;
    return other->flush().is_ok() ? 0 : 4;
  });
  testing::WaitingChild clearing([&] {
    auto other = open_store(directory_.path());
    return other->clear({"", "1"}).value() == 11 ? 0 : 1;
  });
  testing::WaitingChild clearing_all(
      [&] { return open_store(directory_.path())->clear({}).is_ok() ? 0 : 1; });
  auto store = open_store(directory_.path());
  fill(*store, 20);
  EXPECT_EQ(get(*store, context_, "3"), "value 3");
  EXPECT_EQ(child.run(), 0);
  EXPECT_EQ(get(*store, context_, "3"), "replaced");
  EXPECT_EQ(get(*store, context_, "new"), "added");
  EXPECT_EQ(clearing.run(), 0);
  EXPECT_EQ(queries_of([&] {
              EXPECT_EQ(get(*store, context_, "1"), "<missing>");
              EXPECT_EQ(get(*store, context_, "17"), "<missing>");
              EXPECT_EQ(get(*store, context_, "2"), "value 2");
            }),
            0u);
  EXPECT_EQ(clearing_all.run(), 0);
  EXPECT_EQ(found_in_batches(*store, 20), 0);
  EXPECT_EQ(get(*store, context_, "new"), "<missing>");
}

// After each removal, every known entry is asked of the table, and only what changed is read again.
TEST_F(StoreIndexTest, keeps_what_it_verified_of_what_others_did_not_replace) {
  testing::WaitingChild child([&] {
    auto other = open_store(directory_.path());
    return put(*other, context_, "3", "replaced").is_ok() && other->flush().is_ok() ? 0 : 1;
  });
  auto store = open_store(directory_.path());
  fill(*store, 20);
  EXPECT_EQ(found_in_batches(*store, 20), 20);
  EXPECT_EQ(child.run(), 0);
  const FoundEntries found = store->find_all(context_, {"2", "3", "4"});
  EXPECT_NE(found.verified_bytes(0), nullptr);
  EXPECT_EQ(found.verified_bytes(1), nullptr);
  EXPECT_NE(found.verified_bytes(2), nullptr);
  EXPECT_EQ(get(*store, context_, "3"), "replaced");
}

TEST_F(StoreIndexTest, drops_what_is_still_to_be_written_and_what_that_was_to_replace) {
  auto store = open_store(directory_.path());
  for (const bool replaces : {false, true}) {
    SCOPED_TRACE(replaces);
    if (replaces) {
      ASSERT_TRUE(put(*store, context_, "key", "old").is_ok());
      ASSERT_TRUE(store->flush().is_ok());
    }
    const Sequence sequence = put(*store, context_, "key", "new").value();
    ASSERT_TRUE(store->drop({context_, "key"}, sequence + 1).is_ok());
    EXPECT_EQ(get(*store, context_, "key"), "new") << "it has another sequence";
    const std::uint64_t removals = store->removals();
    ASSERT_TRUE(store->drop({context_, "key"}, sequence).is_ok());
    EXPECT_EQ(get(*store, context_, "key"), "<missing>");
    EXPECT_NE(store->removals(), removals);
    ASSERT_TRUE(store->flush().is_ok());
    EXPECT_EQ(get(*store, context_, "key"), "<missing>");
  }
}

TEST_F(StoreIndexTest, takes_back_what_was_put_a_moment_ago_written_or_not) {
  auto store = open_store(directory_.path());
  const Sequence first = put(*store, context_, "first", "1").value();
  ASSERT_TRUE(store->flush().is_ok());
  const Sequence second = put(*store, context_, "second", "2").value();
  const Sequence third = put(*store, context_, "third", "3").value();
  ASSERT_TRUE(put(*store, context_, "third", "newer").is_ok());
  const std::vector<std::string_view> keys{"first", "second", "third", "none"};
  const auto addresses = addresses_of(context_.digest, keys);
  ASSERT_TRUE(store->take_back({context_, keys, addresses}, {first, second, third, 0}).is_ok());
  ASSERT_TRUE(store->flush().is_ok());
  EXPECT_EQ(get(*store, context_, "first"), "<missing>");
  EXPECT_EQ(get(*store, context_, "second"), "<missing>");
  EXPECT_EQ(get(*store, context_, "third"), "newer");
}

TEST_F(StoreIndexTest, forgets_what_was_dropped) {
  auto store = open_store(directory_.path());
  fill(*store, 3);
  ASSERT_TRUE(
      store->drop({context_, "1"}, store->find({context_, "1"}).value()->sequence()).is_ok());
  EXPECT_EQ(queries_of([&] { EXPECT_EQ(get(*store, context_, "1"), "<missing>"); }), 0u);
  EXPECT_EQ(get(*store, context_, "2"), "value 2");
}

TEST_F(StoreIndexTest,
       is_made_in_the_background_for_many_entries_and_the_database_answers_meanwhile) {
  constexpr int kEntries = 10000;
  fill(*open_store(directory_.path()), kEntries);
  const Directory directory(fs::posix_file_system(), directory_.path());
  ControlPage::open(directory.file_system(), directory.control_path(), ReadVia::kMmap, true)
      .value()
      ->set_index_generation(0);
  auto store = open_store(directory_.path());
  EXPECT_EQ(found_in_batches(*store, kEntries), kEntries);
  ASSERT_TRUE(put(*store, context_, "meanwhile", "put").is_ok());
  wait_for_index(*store);
  EXPECT_EQ(get(*store, context_, "meanwhile"), "put");
  auto other = open_store(directory_.path());
  EXPECT_EQ(queries_of([&] { EXPECT_EQ(found_in_batches(*other, kEntries + 5), kEntries); }), 0u);
}

TEST_F(StoreIndexTest, is_made_anew_after_a_process_died_while_it_changed_it) {
  auto store = open_store(directory_.path());
  fill(*store, 100);
  testing::ChildProcess child([&] {
    const Directory directory(fs::posix_file_system(), directory_.path());
    auto control =
        ControlPage::open(directory.file_system(), directory.control_path(), ReadVia::kMmap, true);
    SharedIndex index(directory, control.value().get(),
                      directory.file_system().info(directory.database_path()).value(),
                      ReadVia::kMmap, true);
    index.begin();
    return index.has_all() ? 0 : 1;
  });
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(found_in_batches(*store, 100), 100);
  ASSERT_TRUE(put(*store, context_, "next", "value").is_ok());
  ASSERT_TRUE(store->flush().is_ok());
  EXPECT_EQ(get(*store, context_, "next"), "value");
  wait_for_index(*store);
  auto fresh = open_store(directory_.path());
  EXPECT_EQ(queries_of([&] { EXPECT_EQ(found_in_batches(*fresh, 100), 100); }), 0u);
}

TEST_F(StoreIndexTest, does_without_where_files_may_be_cut_short_and_keeps_it_for_others) {
  StoreOptions options;
  options.directory = directory_.path();
  options.read_via = ReadVia::kPread;
  auto pread = open_store(options);
  auto mapped = open_store(directory_.path());
  fill(*pread, 50);
  EXPECT_EQ(found_in_batches(*pread, 50), 50);
  EXPECT_EQ(queries_of([&] { EXPECT_EQ(found_in_batches(*mapped, 60), 50); }), 0u);
}

}  // namespace
}  // namespace modcache::store
