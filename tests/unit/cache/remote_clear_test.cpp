// SPDX-License-Identifier: Apache-2.0
//
// What was cleared, replaced or proved wrong stays away, whoever still has it.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/remote_tier.h"
#include "support/remote_machines.h"

namespace modcache::cache {
namespace {

using testing::Machine;
using testing::ServerCall;

class RemoteClearTest : public testing::RemoteMachinesTest {
 protected:
  // Calls `act` once, when the server is asked for values next.
  void at_next_question(std::function<void()> act) {
    server_->before_each(
        [act = std::move(act), is_done = std::make_shared<std::atomic<bool>>()](ServerCall call) {
          if (call == ServerCall::kGet && !is_done->exchange(true)) act();
        });
  }
  // The rows that were not found.
  static std::vector<std::size_t> missing(Machine& machine,
                                          const std::vector<std::string_view>& names) {
    Keys keys(machine.keys("").context(), names);
    keys.configuration = machine.cache().configuration();
    LookupOptions options;
    options.may_write = true;
    const Found found = machine.cache().lookup(keys, options);
    machine.cache().count_hits(keys, found, /*may_write=*/true);
    return found.missing();
  }
};

TEST_F(RemoteClearTest, processes_of_one_directory_see_a_clear_by_their_next_call) {
  const auto cleared_by = machine("a");
  cleared_by->share("k", "text");
  cleared_by->share("l", "text");
  const auto other = machine("a", {{"memory", "0"}});
  // It asks the server, so that it knows the marks.
  EXPECT_EQ(other->lookup("missing"), "<missing>");
  cleared_by->cache().clear({}, Cache::Tier::kAll);
  EXPECT_EQ(other->lookup("k"), "<missing>");
  EXPECT_EQ(missing(*other, {"k", "l"}).size(), 2u);
  EXPECT_EQ(cleared_by->lookup("k"), "<missing>");
}

TEST_F(RemoteClearTest, what_was_asked_for_before_a_clear_of_the_directory_is_not_kept_there) {
  machine("a")->share("k", "text");
  const auto asking = machine("b", {{"memory", "0"}});
  const auto clearing = machine("b");  // another process
  at_next_question([&] { clearing->cache().clear({}, Cache::Tier::kDisk); });
  EXPECT_EQ(asking->lookup("k"), "text") << "the server has it";
  asking->cache().flush();
  EXPECT_EQ(asking->lookup("k"), "text");
  EXPECT_EQ(asking->stats(), "0 0 2");
}

// Such a call did not ask the server what was in force when it began: in mode refresh, say.
TEST_F(RemoteClearTest,
       what_was_begun_without_a_lookup_is_not_found_after_another_machine_cleared) {
  const auto running = machine("a");
  const auto other = machine("b");
  const Keys key = running->keys("k");
  const Generation begun = running->cache().begin_run(key, /*may_write=*/true);
  other->cache().clear({}, Cache::Tier::kAll);
  const EntryPtr entry = testing::text_entry("stale");
  running->cache().store(key, {&entry, 1}, {/*replaces=*/true, &begun});
  running->cache().flush();
  EXPECT_EQ(other->lookup("k"), "<missing>");
}

// The server answers before the clear, and the answer is kept after it.
TEST_F(RemoteClearTest, an_answer_that_another_process_clears_meanwhile_is_not_kept) {
  machine("b")->share("k", "text");
  const auto cleared_by = machine("a");
  cleared_by->share("near", "text");
  const auto other = machine("a");
  EXPECT_EQ(other->lookup("missing"), "<missing>") << "it knows the marks";
  at_next_question([&] { cleared_by->cache().clear({}, Cache::Tier::kAll); });
  other->lookup("k");
  EXPECT_EQ(other->lookup("k"), "<missing>");
  EXPECT_EQ(missing(*other, {"k"}).size(), 1u);
  EXPECT_EQ(machine("a")->lookup("k"), "<missing>");
}

TEST_F(RemoteClearTest, rows_that_another_process_clears_meanwhile_are_not_kept) {
  machine("b")->share("k", "text");
  machine("b")->share("l", "text");
  const auto cleared_by = machine("a");
  cleared_by->share("near", "text");
  const auto other = machine("a");
  EXPECT_EQ(other->lookup("missing"), "<missing>") << "it knows the marks";
  at_next_question([&] { cleared_by->cache().clear({}, Cache::Tier::kAll); });
  missing(*other, {"k", "l"});
  EXPECT_EQ(missing(*other, {"k", "l"}).size(), 2u);
  EXPECT_EQ(machine("a")->lookup("k"), "<missing>");
}

TEST_F(RemoteClearTest, what_was_removed_from_the_directory_alone_changes_no_answer) {
  machine("b")->share("k", "text");
  const auto a = machine("a");
  a->share("near", "text");
  EXPECT_EQ(a->lookup("missing"), "<missing>") << "it knows the marks";
  at_next_question([&] { machine("a")->cache().clear({}, Cache::Tier::kDisk); });
  EXPECT_EQ(a->lookup("k"), "text");
  EXPECT_EQ(a->lookup("k"), "text");
  EXPECT_EQ(a->stats(), "1 0 1") << "the answer was stored, since the marks are what they were";
}

// The value proves wrong after the server answered, and before memory has it.
TEST_F(RemoteClearTest, a_value_that_proves_wrong_while_it_is_stored_is_dropped_again) {
  class Watched final : public testing::TextFormat {
   public:
    std::vector<Result<std::shared_ptr<const Value>>> read_all(
        Form form, const FoundRows& found, const std::vector<std::size_t>& rows) const override {
      at_read();
      return TextFormat::read_all(form, found, rows);
    }
    std::function<void()> at_read;
  };
  machine("b")->share("k", "wrong");
  Watched format;
  Cache cache(format, fs::posix_file_system(),
              [&](const Settings&) -> Result<remote::Client::MakeBackend> {
                return testing::ValueServer::connect_to(server_);
              });
  ASSERT_TRUE(cache.configure({{"disk", "0"}, {"remote", "redis://h"}}).is_ok());
  const Keys key = testing::keys_of(cache, "k");
  format.at_read = [&] { cache.note_compared(key, 0, "who", "it differs", true); };
  EXPECT_EQ(testing::lookup_text(cache, key), "wrong");
  EXPECT_EQ(cache.stats().at("entries_memory"), 0);
}

TEST_F(RemoteClearTest, what_is_not_kept_takes_nothing_newer_with_it) {
  machine("b")->share("k", "text");
  machine("b")->share("l", "text");
  const auto cleared_by = machine("a");
  cleared_by->share("near", "text");
  const auto a = machine("a", {{"memory", "0"}});
  EXPECT_EQ(a->lookup("missing"), "<missing>") << "it knows the marks";
  at_next_question([&] {
    cleared_by->cache().clear({}, Cache::Tier::kAll);
    a->store("k", "newer");  // keep_rows() leaves it
  });
  EXPECT_EQ(missing(*a, {"k", "l"}).size(), 0u);
  EXPECT_EQ(a->lookup("l"), "<missing>");
  EXPECT_EQ(a->lookup("k"), "newer");
}

TEST_F(RemoteClearTest, a_damaged_value_among_others_is_one_miss) {
  for (const char* const key : {"a", "b", "c", "d"}) machine("a")->share(key, "text");
  const auto b = machine("b");
  server_->flip_byte(b->entry_name("c"), 60);
  EXPECT_THAT(missing(*b, {"a", "b", "c", "d"}), ::testing::ElementsAre(2u));
  EXPECT_EQ(b->stat("hits_remote"), 3);
  EXPECT_EQ(b->stat("corrupt"), 1);
  b->cache().flush();
  EXPECT_FALSE(server_->has(b->entry_name("c"))) << "it is removed";
}

TEST_F(RemoteClearTest, whether_a_result_is_stored_already_is_no_question_to_the_server) {
  machine("b")->share("k", "text");
  const auto a = machine("a", {{"min_run_us", "1000000000"}});
  const int before = server_->calls(ServerCall::kGet);
  a->store("k", "quick");
  EXPECT_EQ(server_->calls(ServerCall::kGet), before);
  EXPECT_TRUE(a->contains("k"));
  a->store("k", "quick, and another one", "", /*replaces=*/true);
  a->cache().flush();
  EXPECT_EQ(machine("c")->lookup("k"), "quick, and another one");
}

TEST_F(RemoteClearTest, letting_go_of_a_server_that_hangs_waits_for_no_generation) {
  const auto a = machine("a", {{"remote_timeout_ms", "60000"}});
  server_->hang();
  a->store("k", "text");
  const auto began = std::chrono::steady_clock::now();
  a->cache().remote()->close();
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(50))
      << "eight time-outs of a minute";
}

}  // namespace
}  // namespace modcache::cache
