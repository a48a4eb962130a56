// SPDX-License-Identifier: Apache-2.0
//
// Cache::prefetch(), and the thread that reads ahead for it.
#include "cache/read_ahead.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "support/cache_fixture.h"
#include "support/captured_log.h"
#include "support/child_process.h"
#include "support/directory_bytes.h"

namespace modcache::cache {
namespace {

using ::testing::ElementsAre;
using testing::text_entry;
using testing::text_of;

using Names = std::vector<std::string_view>;

class ReadingProcess : public testing::Process {
 public:
  using Process::Process;

  Keys keys_of(const Names& names, Form form = Form::kRow, std::string_view signature = "input") {
    Keys keys = rows(names, signature);
    if (form == Form::kRow) return keys;
    return Process::keys(names.front(), signature);
  }
  void store(std::string_view key, const std::string& text, Form form = Form::kRow) {
    const EntryPtr entries[] = {text_entry(text, "input", 5)};
    cache().store(keys_of({key}, form), entries);
  }
  std::vector<bool> ask(const Names& names, Form form = Form::kRow) {
    std::vector<bool> is_there(names.size(), false);
    cache().prefetch(keys_of(names, form), is_there);
    return is_there;
  }
  std::vector<bool> prefetch(const Names& names, Form form = Form::kRow) {
    std::vector<bool> is_there = ask(names, form);
    cache().wait_until_read_ahead();
    return is_there;
  }
  std::string lookup(std::string_view key, Form form = Form::kRow,
                     std::string_view signature = "input") {
    return testing::lookup_text(cache(), keys_of({key}, form, signature), /*may_write=*/false);
  }
};

class ReadAheadTest : public ::testing::Test {
 protected:
  ReadAheadTest() {
    ReadingProcess writer(dir_);
    for (const char* key : {"a", "b", "c", "d"}) writer.store(key, std::string("row ") + key);
    writer.store("whole", "all of it", Form::kWhole);
    writer.cache().flush();
  }
  // What an entry of the fixture takes of the budget of memory.
  std::int64_t size_of_one() {
    ReadingProcess process(dir_);
    process.prefetch({"a"});
    return process.stat("bytes_memory");
  }
  std::string room_for(std::int64_t entries) { return std::to_string(entries * size_of_one()); }

  testing::TemporaryDirectory directory_;
  const std::string dir_ = directory_ / "cache";
};

TEST_F(ReadAheadTest, tells_which_keys_are_there_and_brings_them_into_memory) {
  ReadingProcess here(dir_);
  EXPECT_THAT(here.prefetch({"a", "x", "c"}), ElementsAre(true, false, true));
  EXPECT_EQ(here.stat("entries_memory"), 2);
  EXPECT_EQ(here.lookup("a"), "row a");
  EXPECT_EQ(here.lookup("c"), "row c");
  EXPECT_EQ(here.stat("hits_memory"), 2);
  EXPECT_EQ(here.stat("hits_disk"), 0);
  EXPECT_EQ(here.stat("saved_us"), 10);
}

TEST_F(ReadAheadTest, what_is_too_old_in_memory_is_not_there) {
  ReadingProcess here(dir_);
  ASSERT_TRUE(here.cache().configure({{"disk", "0"}, {"max_age", "60"}}).is_ok());
  for (const bool is_old : {true, false}) {
    Entry entry = *text_entry("text", "input", 5);
    if (is_old) entry.stored_at_us -= std::int64_t{3600} * 1'000'000;
    const EntryPtr entries[] = {std::make_shared<const Entry>(entry)};
    here.cache().store(here.keys_of({is_old ? "old" : "new"}), entries);
  }
  EXPECT_THAT(here.prefetch({"old", "new"}), ElementsAre(false, true));
}

// Whoever asks waits for no record, so only the thread that reads ahead meets a damaged one.
TEST_F(ReadAheadTest, the_answer_takes_no_look_at_any_record) {
  const testing::CapturedLog log;
  const std::string segment = testing::segment_files(dir_).front();
  const auto payload = testing::file_bytes(segment).find("row b");
  ASSERT_NE(payload, std::string::npos);
  for (const std::uint64_t sequence : {16, 17, 18}) {
    testing::flip_bit(segment, payload - 128 + sequence);
  }
  ReadingProcess here(dir_);
  EXPECT_THAT(here.ask({"a", "b", "x"}), ElementsAre(true, true, false));
  here.cache().wait_until_read_ahead();
  EXPECT_EQ(here.stat("entries_memory"), 1);
}

TEST_F(ReadAheadTest, counts_neither_hits_nor_misses) {
  ReadingProcess here(dir_);
  here.prefetch({"a", "x"});
  EXPECT_EQ(here.stat("hits_memory") + here.stat("hits_disk") + here.stat("misses"), 0);
}

TEST_F(ReadAheadTest, whole_values_have_a_form_of_their_own) {
  ReadingProcess here(dir_);
  EXPECT_THAT(here.prefetch({"whole"}), ElementsAre(false));
  EXPECT_THAT(here.prefetch({"whole"}, Form::kWhole), ElementsAre(true));
  EXPECT_EQ(here.lookup("whole", Form::kWhole), "all of it");
  EXPECT_EQ(here.stat("hits_memory"), 1);
}

TEST_F(ReadAheadTest, the_signature_of_the_input_comes_along) {
  const testing::CapturedLog log;
  ReadingProcess here(dir_);
  here.prefetch({"a"});
  EXPECT_EQ(here.lookup("a", Form::kRow, "other"), "<missing>");
  EXPECT_EQ(here.stat("key_conflicts"), 1);
}

TEST_F(ReadAheadTest, what_memory_has_is_found_and_not_read_again) {
  ReadingProcess here(dir_);
  here.store("new", "here");
  EXPECT_THAT(here.prefetch({"new", "a"}), ElementsAre(true, true));
  EXPECT_EQ(here.stat("entries_memory"), 2);
}

TEST_F(ReadAheadTest, an_entry_that_another_process_replaced_is_not_handed_out) {
  ReadingProcess here(dir_);
  here.prefetch({"a"});
  ReadingProcess other(dir_);
  other.store("a", "newer");
  other.cache().flush();
  EXPECT_EQ(here.lookup("a"), "newer");
}

TEST_F(ReadAheadTest, an_entry_that_another_process_cleared_is_no_longer_found) {
  ReadingProcess here(dir_);
  here.prefetch({"a"});
  ReadingProcess(dir_).cache().clear({}, Cache::Tier::kAll);
  EXPECT_THAT(here.prefetch({"a"}), ElementsAre(false));
  EXPECT_EQ(here.lookup("a"), "<missing>");
}

TEST_F(ReadAheadTest, entries_used_longest_ago_make_room) {
  ReadingProcess here(dir_, room_for(2));
  here.prefetch({"a"});
  here.prefetch({"b"});
  here.lookup("a");
  here.prefetch({"c"});
  here.lookup("a");
  here.lookup("c");
  EXPECT_EQ(here.stat("hits_memory"), 3);
  EXPECT_EQ(here.stat("evicted"), 1);
}

TEST_F(ReadAheadTest, entries_of_one_request_do_not_push_each_other_out) {
  ReadingProcess here(dir_, room_for(2));
  EXPECT_THAT(here.prefetch({"a", "b", "c", "d"}), ElementsAre(true, true, true, true));
  EXPECT_EQ(here.stat("entries_memory"), 2);
  EXPECT_EQ(here.stat("evicted"), 0);
  here.lookup("a");
  here.lookup("b");
  EXPECT_EQ(here.stat("hits_memory"), 2);
}

TEST_F(ReadAheadTest, what_the_request_found_in_memory_leaves_last) {
  ReadingProcess here(dir_, room_for(2));
  here.prefetch({"a"});
  here.prefetch({"b"});
  here.prefetch({"a", "c"});
  here.lookup("a");
  here.lookup("c");
  EXPECT_EQ(here.stat("hits_memory"), 2);
}

TEST_F(ReadAheadTest, the_budget_holds) {
  ReadingProcess here(dir_, std::to_string(size_of_one() - 1));
  EXPECT_THAT(here.prefetch({"a", "b"}), ElementsAre(true, true));
  EXPECT_EQ(here.stat("entries_memory"), 0);
}

TEST_F(ReadAheadTest, without_a_memory_tier_it_only_tells) {
  ReadingProcess here(dir_, "0");
  EXPECT_THAT(here.prefetch({"a", "x"}), ElementsAre(true, false));
  EXPECT_EQ(here.stat("entries_memory"), 0);
}

TEST_F(ReadAheadTest, nothing_is_brought_while_the_process_may_not_read) {
  ReadingProcess here(dir_);
  here.cache().set_mode(Mode::kOff);
  here.prefetch({"a"});
  here.cache().set_mode(Mode::kOn);
  EXPECT_EQ(here.stat("entries_memory"), 0);
}

TEST_F(ReadAheadTest, no_directory_is_made) {
  const std::string nowhere = directory_ / "nowhere";
  ReadingProcess here(nowhere);
  EXPECT_THAT(here.prefetch({"a"}), ElementsAre(false));
  EXPECT_FALSE(std::filesystem::exists(nowhere));
}

TEST_F(ReadAheadTest, a_row_of_a_device_is_brought_to_it_when_it_was_found_on_disk) {
  ReadingProcess here(dir_);
  here.cache().place("scope", {Place::Kind::kDevice, "cuda:0"});
  EXPECT_THAT(here.lookup_rows({"a", "x"}, "input"), ElementsAre("disk: row a", "<missing>"));
  here.cache().wait_until_read_ahead();
  EXPECT_EQ(here.lookup("a"), "row a@cuda:0");
  EXPECT_EQ(here.stat("hits_memory"), 1);
}

TEST_F(ReadAheadTest, a_row_found_on_disk_pushes_nothing_out_of_a_device) {
  constexpr std::int64_t kDeviceNameBytes = 7;  // of "row a@cuda:0"
  ReadingProcess here(dir_, std::to_string(size_of_one() + kDeviceNameBytes));
  here.cache().place("scope", {Place::Kind::kDevice, "cuda:0"});
  for (int round = 0; round < 3; ++round) {
    here.lookup_rows({"a", "b", "c"}, "input");
    here.cache().wait_until_read_ahead();
  }
  EXPECT_EQ(here.lookup("a"), "row a@cuda:0");
  EXPECT_EQ(here.stat("evicted"), 0);
  EXPECT_EQ(here.stat("hits_memory"), 3);
  EXPECT_EQ(here.stat("hits_disk"), 7);
}

#if MODCACHE_CAN_FORK_WITH_THREADS
TEST_F(ReadAheadTest, a_forked_child_reads_ahead_by_itself) {
  ReadingProcess here(dir_);
  here.prefetch({"a"});
  testing::ChildProcess child([&] {
    here.prefetch({"b"});
    return static_cast<int>(here.stat("entries_memory"));
  });
  EXPECT_EQ(child.wait(), 2);
}
#endif

TEST_F(ReadAheadTest, threads_ask_and_look_up_while_another_clears_and_the_settings_change) {
  ReadingProcess here(dir_, room_for(3));
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        here.ask({"a", "b", "c", "d"});
        for (const char* key : {"a", "b", "c", "d"}) {
          const std::string text = here.lookup(key);
          EXPECT_TRUE(text == std::string("row ") + key || text == "<missing>") << text;
        }
      }
    });
  }
  for (int round = 0; round < 5; ++round) {
    here.cache().clear({}, Cache::Tier::kMemory);
    EXPECT_TRUE(here.cache().configure({{"dir", directory_ / "other"}}).is_ok());
    EXPECT_TRUE(here.cache().configure({{"dir", dir_}}).is_ok());
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(here.ask({"a"}), ElementsAre(true));
}

TEST_F(ReadAheadTest, after_the_directory_was_closed_it_reads_ahead_again) {
  ReadingProcess here(dir_);
  for (const char* key : {"a", "b"}) {
    here.prefetch({key});
    here.cache().close();
  }
  EXPECT_EQ(here.stat("entries_memory"), 2);
}

}  // namespace
}  // namespace modcache::cache
