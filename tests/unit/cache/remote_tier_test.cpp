// SPDX-License-Identifier: Apache-2.0
//
// The remote tier through a Cache, on a server in memory.
#include "cache/remote_tier.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cache/cache.h"
#include "support/captured_log.h"
#include "support/eventually.h"
#include "support/remote_machines.h"

namespace modcache::cache {
namespace {

using testing::kLongRunUs;
using testing::Machine;
using testing::ServerCall;
using testing::text_entry;

class RemoteTierTest : public testing::RemoteMachinesTest {};

TEST_F(RemoteTierTest, what_one_machine_stored_another_one_finds_and_keeps) {
  machine("a")->share("k", "text");
  const auto b = machine("b");
  EXPECT_EQ(b->lookup("k"), "text");
  EXPECT_EQ(b->stats(), "0 0 1");
  EXPECT_EQ(b->lookup("k"), "text");
  EXPECT_EQ(b->stats(), "1 0 1") << "memory has it";
  b->cache().flush();
  server_->fail(Status::io_error("down"));
  EXPECT_EQ(machine("b")->lookup("k"), "text") << "the directory has it";
}

TEST_F(RemoteTierTest, a_question_is_one_call_and_a_nearer_hit_is_none) {
  machine("a")->share("k", "text");
  const auto b = machine("b");
  const int before = server_->calls(ServerCall::kGet);
  b->lookup("k");
  EXPECT_EQ(server_->calls(ServerCall::kGet), before + 1) << "the marks go along";
  b->lookup("k");
  EXPECT_EQ(server_->calls(ServerCall::kGet), before + 1);
}

TEST_F(RemoteTierTest, lookups_that_leave_out_the_server_do_not_ask_it) {
  machine("a")->share("k", "text");
  const auto b = machine("b");
  const int before = server_->calls(ServerCall::kGet);
  LookupOptions near = testing::lookup_options();
  near.asks_server = false;
  EXPECT_TRUE(b->cache().lookup(b->keys("k"), near).has_missing());
  EXPECT_EQ(server_->calls(ServerCall::kGet), before);
}

TEST_F(RemoteTierTest, rows_of_a_batch_come_in_one_question_and_are_kept) {
  const auto a = machine("a");
  a->store_rows({{"a", "a text"}, {"b", "b text"}, {"c", "c text"}}, "", kLongRunUs);
  a->cache().flush();
  const auto b = machine("b");
  const std::vector<std::string_view> names{"a", "missing", "b", "c"};
  const int before = server_->calls(ServerCall::kGet);
  for (int turn = 0; turn < 2; ++turn) {
    EXPECT_THAT(b->lookup_rows(names), ::testing::ElementsAre("disk: a text", "<missing>",
                                                              "disk: b text", "disk: c text"));
  }
  EXPECT_EQ(server_->calls(ServerCall::kGet), before + 2) << "only the missing one again";
  EXPECT_EQ(b->stats(), "0 3 3");
}

TEST_F(RemoteTierTest, rows_of_the_directory_and_of_the_server_are_read_together) {
  const auto b = machine("b");
  b->store_rows({{"near", "n"}}, "", kLongRunUs);
  const auto a = machine("a");
  a->store_rows({{"far", "f"}}, "", kLongRunUs);
  a->cache().flush();
  ASSERT_TRUE(b->configure({{"memory", "0"}}).is_ok());
  EXPECT_THAT(b->lookup_rows({"far", "near"}), ::testing::ElementsAre("disk: f", "disk: n"));
  EXPECT_EQ(b->stats(), "0 1 1");
}

TEST_F(RemoteTierTest, without_a_directory_memory_keeps_rows) {
  const auto a = machine("a");
  a->store_rows({{"k", "text"}}, "", kLongRunUs);
  a->cache().flush();
  const auto b = machine("b", {{"disk", "0"}});
  EXPECT_THAT(b->lookup_rows({"k"}), ::testing::ElementsAre("disk: text"));
  EXPECT_THAT(b->lookup_rows({"k"}), ::testing::ElementsAre("memory: text"));
  EXPECT_EQ(b->stats(), "1 0 1");
}

TEST_F(RemoteTierTest, an_entry_of_another_input_is_a_conflict) {
  machine("a")->share("k", "text", "float[4]");
  const auto b = machine("b");
  EXPECT_EQ(b->lookup("k", "float[5]"), "<missing>");
  EXPECT_EQ(b->stat("key_conflicts"), 1);
  EXPECT_EQ(b->stat("hits_remote"), 0);
}

TEST_F(RemoteTierTest, a_damaged_entry_is_a_miss_that_is_counted_and_removed) {
  machine("a")->share("k", "text");
  const auto b = machine("b");
  const std::string name = b->entry_name("k");
  server_->flip_byte(name, 60);
  EXPECT_EQ(b->lookup("k"), "<missing>");
  EXPECT_EQ(b->stat("corrupt"), 1);
  b->cache().flush();
  EXPECT_FALSE(server_->has(name));
}

TEST_F(RemoteTierTest, with_read_access_nothing_is_removed_or_kept_in_the_directory) {
  const auto a = machine("a");
  a->share("k", "text");
  a->share("damaged", "text");
  server_->flip_byte(a->entry_name("damaged"), 60);
  const auto b = machine("b");
  EXPECT_EQ(b->lookup("damaged", "", /*may_write=*/false), "<missing>");
  EXPECT_EQ(b->lookup("k", "", /*may_write=*/false), "text");
  b->cache().flush();
  EXPECT_TRUE(server_->has(a->entry_name("damaged")));
  EXPECT_EQ(b->stat("entries_disk"), 0);
}

TEST_F(RemoteTierTest, a_clear_is_seen_by_others_within_the_time) {
  const auto a = machine("a");
  a->share("k", "text");
  const auto b = machine("b", {{"memory", "0"}, {"disk", "0"}});
  EXPECT_EQ(b->lookup("k"), "text");
  a->cache().clear({}, Cache::Tier::kAll);
  EXPECT_EQ(a->lookup("k"), "<missing>") << "at once by who cleared";
  const auto until = std::chrono::steady_clock::now() + 2 * remote::Generations::kLookAgainAfter;
  while (b->lookup("k") == "text" && std::chrono::steady_clock::now() < until) {
  }
  EXPECT_EQ(b->lookup("k"), "<missing>");
  a->share("k", "new");
  EXPECT_EQ(machine("c")->lookup("k"), "new");
}

TEST_F(RemoteTierTest, tier_remote_clears_nothing_else) {
  const auto a = machine("a");
  a->share("k", "text");
  a->cache().clear({}, Cache::Tier::kRemote);
  EXPECT_EQ(a->lookup("k"), "text");
  EXPECT_EQ(machine("b")->lookup("k"), "<missing>");
}

TEST_F(RemoteTierTest, a_clear_that_fails_says_so) {
  const auto a = machine("a");
  a->share("k", "text");
  const testing::CapturedLog log;
  server_->fail(Status::io_error("down"));
  a->cache().clear({}, Cache::Tier::kRemote);
  EXPECT_THAT(log.about("it was not cleared"), ::testing::SizeIs(1));
  EXPECT_THAT(log.about("secret"), ::testing::IsEmpty());
}

TEST_F(RemoteTierTest, a_replaced_value_is_not_found_while_the_server_cannot_be_told) {
  const auto a = machine("a", {{"memory", "0"}, {"disk", "0"}});
  a->share("k", "old");
  server_->refuse_writes(Status::no_space("full"));
  a->store("k", "new", "", /*replaces=*/true);
  a->cache().flush();
  EXPECT_EQ(a->lookup("k"), "<missing>");
  server_->refuse_writes(Status::ok());
  // A full server is not written to for a second.
  EXPECT_TRUE(testing::eventually([&] {
    a->share("k", "newest");
    return a->lookup("k") == "newest";
  }));
}

TEST_F(RemoteTierTest, an_answer_does_not_take_the_place_of_what_came_meanwhile) {
  machine("a")->share("k", "old");
  const auto b = machine("b");
  std::atomic<bool> has_stored{false};
  server_->before_each([&](ServerCall call) {
    if (call != ServerCall::kGet || has_stored.exchange(true)) return;
    b->store("k", "new");
  });
  b->lookup("k");
  b->cache().flush();
  server_->fail(Status::io_error("down"));
  EXPECT_EQ(machine("b")->lookup("k"), "new") << "the directory has it";
}

TEST_F(RemoteTierTest, an_answer_from_before_a_value_proved_wrong_is_a_miss) {
  machine("a")->share("k", "wrong");
  const auto b = machine("b");
  std::atomic<bool> is_known{false};
  server_->before_each([&](ServerCall call) {
    if (call != ServerCall::kGet || is_known.exchange(true)) return;
    b->cache().note_compared(b->keys("k"), 0, "who", "it differs", true);
  });
  EXPECT_EQ(b->lookup("k"), "<missing>");
  b->cache().flush();
  server_->fail(Status::io_error("down"));
  EXPECT_EQ(machine("b")->lookup("k"), "<missing>");
}

TEST_F(RemoteTierTest, other_settings_end_the_connections_of_those_before) {
  const auto a = machine("a");
  const auto retired = a->cache().remote();
  a->share("k", "text");
  ASSERT_TRUE(a->cache().configure({{"remote_ttl", "60"}}).is_ok());
  const int calls = server_->calls(ServerCall::kGet);
  Found found(1);
  retired->find(a->keys("l"), Access::kRead, OnMiss::kIgnore, found);
  EXPECT_EQ(found.rows().size(), 0u);
  EXPECT_EQ(server_->calls(ServerCall::kGet), calls) << "nothing is opened again for it";
}

TEST_F(RemoteTierTest, a_server_that_fails_costs_a_miss_and_one_message) {
  const auto a = machine("a");
  const testing::CapturedLog log;
  server_->fail(Status::io_error("down"));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(a->lookup("k" + std::to_string(i)), "<missing>");
  a->store("k", "text");
  EXPECT_EQ(a->lookup("k"), "text");
  EXPECT_EQ(a->stat("errors"), 1);
  EXPECT_THAT(log.about("redis://user:***@host/0"), ::testing::SizeIs(1));
}

TEST_F(RemoteTierTest, a_server_that_hangs_costs_one_time_out) {
  const auto a = machine("a", {{"remote_timeout_ms", "50"}});
  EXPECT_EQ(a->lookup("first"), "<missing>");
  server_->hang();
  const auto started = std::chrono::steady_clock::now();
  for (int i = 0; i < 100; ++i) a->lookup("k" + std::to_string(i));
  // A time-out for each lookup takes 5 s.
  EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(4));
}

TEST_F(RemoteTierTest, entries_that_are_too_old_are_not_found) {
  machine("a")->share("k", "text");
  EXPECT_EQ(machine("b", {{"max_age", "3600"}})->lookup("k"), "text");
  const auto mark = [&](std::int64_t not_before_us) {
    // As a clear of what is older than that leaves it.
    store::ClearFilter older;
    older.older_than_us = not_before_us;
    machine("d")->cache().clear(older, Cache::Tier::kRemote);
  };
  mark(now_us() + 3'600'000'000);
  EXPECT_EQ(machine("c")->lookup("k"), "<missing>");
}

TEST_F(RemoteTierTest, a_look_says_that_only_the_server_has_it) {
  machine("a")->share("k", "text");
  const auto b = machine("b");
  const auto seen = b->cache().inspect(b->keys("k")).front();
  ASSERT_TRUE(seen.has_value());
  EXPECT_TRUE(seen->is_remote);
  EXPECT_EQ(seen->run_us, kLongRunUs);
  EXPECT_EQ(b->stat("hits_remote"), 0);
}

}  // namespace
}  // namespace modcache::cache
