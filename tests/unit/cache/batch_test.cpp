// SPDX-License-Identifier: Apache-2.0
//
// Many rows at once, through a Session.
#include "cache/batch.h"

#include <gmock/gmock.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "support/cache_fixture.h"
#include "support/captured_log.h"
#include "support/directory_bytes.h"
#include "support/eventually.h"

namespace modcache::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::text_entry;
using testing::text_of;
using ::testing::UnorderedElementsAre;

using Keys = std::vector<std::string_view>;

ContextPtr row_context() {
  static const ContextPtr context = [] {
    ContextParts parts;
    parts.scope = "scope";
    parts.method = "forward";
    parts.form = Form::kRow;
    return make_context(parts);
  }();
  return context;
}

class BatchProcess : public testing::Process {
 public:
  using Process::Process;

  // Where each row was found, and its text: "memory: a", "disk: b", "<missing>".
  std::vector<std::string> lookup(const Keys& keys, std::string_view signature = "") {
    const BatchRequest request{row_context(), keys, signature};
    BatchFound found = session().lookup_all(request, true);
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < keys.size(); ++i) texts.push_back(text(request, found, i));
    return texts;
  }
  // How many were kept.
  std::size_t store(const std::map<std::string, std::string>& texts,
                    const std::string& signature = "", std::int64_t run_us = 0) {
    Keys keys;
    std::vector<EntryPtr> entries;
    for (const auto& [key, text] : texts) {
      keys.push_back(key);
      entries.push_back(text_entry(text, signature, run_us));
    }
    return session().store_all(row_context(), keys, entries);
  }
  Session& session() {
    session_ = cache().session();
    return *session_;
  }

 private:
  std::string text(const BatchRequest& request, BatchFound& found, std::size_t i) {
    if (const EntryPtr entry = found.in_memory(i)) return "memory: " + text_of(entry);
    if (!found.is_row(i)) return "<missing>";
    const std::size_t row = found.row(i);
    EXPECT_EQ(found.rows().header(row).value_header, testing::TextValue::kHeader);
    std::string text(found.rows().payload_size_bytes(row), '?');
    const Status status = found.rows().read(row, text.data());
    if (status.is_ok()) return "disk: " + text;
    session().refuse(request, found, i, status, true);
    EXPECT_TRUE(found.is_missing(i));
    return "<refused>";
  }

  SessionPtr session_;
};

class BatchTest : public ::testing::Test {
 protected:
  testing::TemporaryDirectory directory_;
  const std::string dir_ = directory_ / "cache";
  BatchProcess here_{dir_};
};

TEST_F(BatchTest, finds_what_was_stored_in_memory_and_what_another_process_stored_on_disk) {
  here_.store({{"a", "1"}, {"b", "2"}}, "", 10);
  here_.cache().flush();
  BatchProcess there(dir_);
  EXPECT_THAT(here_.lookup({"b", "none", "a"}), ElementsAre("memory: 2", "<missing>", "memory: 1"));
  for (int turn = 0; turn < 2; ++turn) {
    EXPECT_THAT(there.lookup({"b", "none", "a"}), ElementsAre("disk: 2", "<missing>", "disk: 1"))
        << "rows of the disk stay there";
  }
  EXPECT_EQ(here_.stat("stored"), 2);
  EXPECT_EQ(here_.stat("hits_memory"), 2);
  EXPECT_EQ(here_.stat("saved_us"), 20);
  EXPECT_EQ(there.stat("hits_disk"), 4);
  EXPECT_EQ(there.stat("saved_us"), 40);
  EXPECT_EQ(there.stat("misses"), 0) << "counted by the caller, who knows the rules";
  EXPECT_EQ(there.stat("entries_memory"), 0);
}

TEST_F(BatchTest, one_batch_takes_rows_from_memory_and_from_disk) {
  BatchProcess there(dir_);
  there.store({{"a", "1"}, {"c", "3"}});
  there.cache().flush();
  here_.store({{"b", "2"}});
  EXPECT_THAT(here_.lookup({"a", "b", "c", "d"}),
              ElementsAre("disk: 1", "memory: 2", "disk: 3", "<missing>"));
  EXPECT_THAT(here_.lookup({"b"}), ElementsAre("memory: 2"));
  EXPECT_THAT(here_.lookup({}), IsEmpty());
}

TEST_F(BatchTest, without_a_memory_tier_finds_also_what_is_still_queued) {
  BatchProcess small(directory_ / "small", "0");
  small.store({{"a", "1"}, {"b", "2"}});
  EXPECT_THAT(small.lookup({"a", "b"}), ElementsAre("disk: 1", "disk: 2"));
  small.cache().flush();
  EXPECT_THAT(small.lookup({"a", "b"}), ElementsAre("disk: 1", "disk: 2"));
  EXPECT_EQ(small.stat("hits_disk"), 4);
}

TEST_F(BatchTest, a_row_of_another_signature_is_a_miss_and_a_conflict) {
  testing::CapturedLog log;
  here_.store({{"a", "1"}, {"b", "2"}}, "float32[2]");
  here_.store({{"c", "3"}}, "float32[3]");
  here_.store({{"d", "4"}});
  here_.cache().flush();
  BatchProcess there(dir_);
  EXPECT_THAT(here_.lookup({"a", "b", "c", "d"}, "float32[3]"),
              ElementsAre("<missing>", "<missing>", "memory: 3", "memory: 4"));
  EXPECT_THAT(there.lookup({"a", "b", "c", "d"}, "float32[3]"),
              ElementsAre("<missing>", "<missing>", "disk: 3", "disk: 4"));
  for (BatchProcess* process : {&here_, &there}) EXPECT_EQ(process->stat("key_conflicts"), 2);
  EXPECT_EQ(there.stat("hits_disk"), 2);
  EXPECT_THAT(log.about("key 'a' was stored for an input float32[2]"), SizeIs(1)) << "once";
}

TEST_F(BatchTest, says_which_misses_are_conflicts) {
  const testing::CapturedLog log;
  here_.store({{"a", "1"}}, "float32[2]");
  here_.cache().flush();
  BatchProcess there(dir_);
  there.store({{"b", "2"}, {"d", "4"}}, "float32[2]");  // these in memory, "a" on disk
  there.store({{"c", "3"}}, "float32[3]");
  const Keys keys = {"a", "b", "c", "d", "e"};
  const BatchFound found = there.session().lookup_all({row_context(), keys, "float32[3]"}, true);
  EXPECT_THAT(found.conflicts(), UnorderedElementsAre(0u, 1u, 3u));
  EXPECT_EQ(there.stat("key_conflicts"), 3);
}

// Sequences begin anew there: each directory calls its first entry the same.
TEST_F(BatchTest, what_memory_holds_is_forgotten_where_another_directory_took_the_place) {
  const testing::CapturedLog quiet;
  here_.store({{"a", "1"}, {"b", "2"}});
  here_.cache().flush();
  std::filesystem::remove_all(dir_);
  BatchProcess there(dir_);
  there.store({{"a", "new"}});
  there.cache().flush();
  here_.cache().flush();  // looks at the files; the thread that writes would do so in a moment
  EXPECT_THAT(here_.lookup({"a", "b"}), ElementsAre("disk: new", "<missing>"));
}

TEST_F(BatchTest, memory_answers_as_the_directory_would_when_entries_were_removed_there) {
  here_.store({{"a", "1"}, {"b", "2"}, {"c", "3"}});
  here_.cache().flush();
  BatchProcess there(dir_);
  there.store({{"a", "new"}});
  there.cache().flush();
  EXPECT_THAT(here_.lookup({"a", "b", "c"}), ElementsAre("disk: new", "memory: 2", "memory: 3"));
  there.cache().clear({"", "b"}, Cache::Tier::kAll);
  EXPECT_THAT(here_.lookup({"a", "b", "c"}), ElementsAre("disk: new", "<missing>", "memory: 3"));
  EXPECT_EQ(here_.stat("entries_memory"), 1);
}

TEST_F(BatchTest, a_damaged_row_is_one_miss_and_is_dropped) {
  {
    BatchProcess writer(dir_);
    writer.store({{"a", "the text of a"}, {"b", "the text of b"}}, "", 10);
    writer.cache().flush();
  }
  const std::string segment = testing::segment_files(dir_).front();
  testing::flip_bit(segment, testing::file_bytes(segment).find("the text of a"));
  EXPECT_THAT(here_.lookup({"a", "b"}), ElementsAre("<refused>", "disk: the text of b"));
  EXPECT_EQ(here_.stat("corrupt"), 1);
  EXPECT_EQ(here_.stat("hits_disk"), 1);
  EXPECT_EQ(here_.stat("saved_us"), 10);
  EXPECT_THAT(here_.lookup({"a", "b"}), ElementsAre("<missing>", "disk: the text of b"));
  EXPECT_EQ(here_.stat("corrupt"), 1);
  EXPECT_EQ(here_.stat("entries_disk"), 1);
}

TEST_F(BatchTest, a_damaged_record_is_one_miss_and_is_dropped) {
  {
    BatchProcess writer(dir_);
    writer.store({{"a", "the text of a"}, {"b", "the text of b"}});
    writer.cache().flush();
  }
  const std::string segment = testing::segment_files(dir_).front();
  testing::flip_bit(segment, testing::file_bytes(segment).find("the text of a") - 100);
  EXPECT_THAT(here_.lookup({"a", "b"}), ElementsAre("<missing>", "disk: the text of b"));
  EXPECT_EQ(here_.stat("corrupt"), 1);
  EXPECT_EQ(here_.stat("errors"), 0);
  EXPECT_EQ(here_.stat("entries_disk"), 1);
}

TEST_F(BatchTest, a_row_from_memory_that_is_refused_is_no_hit_and_stays_in_both_tiers) {
  here_.store({{"a", "1"}, {"b", "2"}}, "", 10);
  const Keys keys = {"a", "b", "none"};
  const BatchRequest request{row_context(), keys, ""};
  BatchFound found = here_.session().lookup_all(request, true);
  for (int turn = 0; turn < 2; ++turn) {  // the second one finds nothing left to refuse
    here_.session().refuse(request, found, 0, Status::corruption("it does not fit"), true);
    EXPECT_THAT(found.missing(), ElementsAre(0u, 2u));
    EXPECT_EQ(found.in_memory(0), nullptr);
    EXPECT_EQ(text_of(found.in_memory(1)), "2");
    EXPECT_EQ(here_.stat("hits_memory"), 1);
    EXPECT_EQ(here_.stat("hits_disk"), 0);
    EXPECT_EQ(here_.stat("saved_us"), 10);
    EXPECT_EQ(here_.stat("corrupt"), 0);
  }
  here_.cache().flush();
  EXPECT_THAT(BatchProcess(dir_).lookup({"a", "b"}), ElementsAre("disk: 1", "disk: 2"));
}

TEST_F(BatchTest, says_how_many_rows_it_kept) {
  EXPECT_EQ(here_.store({{"a", "1"}, {"b", "2"}}, "", 5), 2u);
  EXPECT_EQ(here_.store({}), 0u);
  ASSERT_TRUE(here_.cache().configure({{"min_run_us", "100"}}).is_ok());
  EXPECT_EQ(here_.store({{"c", "3"}, {"d", "4"}}, "", 5), 0u) << "too quick";
  EXPECT_EQ(here_.store({{"b", "new"}, {"c", "3"}}, "", 5), 1u) << "one replaces";
  EXPECT_EQ(here_.store({{"c", "3"}, {"d", "4"}}, "", 100), 2u);
}

TEST_F(BatchTest, a_directory_that_cannot_be_used_is_an_error_and_misses) {
  testing::write_file(directory_ / "a file", "");
  BatchProcess nowhere((directory_ / "a file") + "/cache", "0");
  nowhere.store({{"a", "1"}, {"b", "2"}});
  EXPECT_THAT(nowhere.lookup({"a", "b"}), ElementsAre("<missing>", "<missing>"));
  EXPECT_EQ(nowhere.stat("errors"), 1);
}

TEST_F(BatchTest, leads_the_missing_rows_that_nobody_else_leads) {
  here_.store({{"b", "2"}});
  const Keys all = {"a", "b", "c"};
  const BatchRequest request{row_context(), all, ""};
  const Keys one = {"c"};
  const BatchRequest overlapping{row_context(), one, ""};
  Session& session = here_.session();
  BatchFound found = session.lookup_all(overlapping, true);
  BatchLead other = session.lead_rows(found);
  EXPECT_THAT(other.led, ElementsAre(0u));

  found = session.lookup_all(request, true);
  EXPECT_THAT(found.missing(), ElementsAre(0u, 2u));
  BatchLead lead = session.lead_rows(found);
  EXPECT_THAT(lead.led, ElementsAre(0u));
  EXPECT_THAT(lead.awaited, ElementsAre(2u));
  EXPECT_FALSE(lead.look_again);
  EXPECT_FALSE(session.wait_for(request, lead.awaited).look_again) << "not while it leads";

  found = session.lookup_all(request, true);
  other.lead.stored();
  other.lead.give_up();
  lead.lead.give_up();
  EXPECT_TRUE(session.wait_for(request, lead.awaited).look_again);
  lead = session.lead_rows(found);
  EXPECT_TRUE(lead.look_again) << "a run ended since the lookup";
}

// Otherwise whoever waits would take the lead for one whose run gave nothing, and run the row
// again.
TEST_F(BatchTest, whoever_waits_for_a_lead_that_found_its_rows_looks_them_up) {
  const Keys keys = {"a"};
  const BatchRequest request{row_context(), keys, ""};
  Session& session = here_.session();
  BatchFound found = session.lookup_all(request, true);
  BatchLead runs = session.lead_rows(found);
  found = session.lookup_all(request, true);
  here_.store({{"a", "1"}});
  runs.lead.stored();
  runs.lead.give_up();
  BatchLead late = session.lead_rows(found);
  ASSERT_TRUE(late.look_again);

  auto waits =
      std::async(std::launch::async, [&] { return session.wait_for(request, {0}).look_again; });
  const Digest128 address = store::address_of(row_context()->digest, keys.front());
  EXPECT_TRUE(testing::eventually([&] { return late.lead.is_awaited(address); }));
  EXPECT_TRUE(session.lookup_led(request, late.lead).missing().empty());
  late.lead.give_up();
  EXPECT_TRUE(waits.get());
}

// Overlapping batches in many threads: every row is run once, and nobody waits for ever.
TEST_F(BatchTest, overlapping_batches_run_each_row_once) {
  constexpr int kThreads = 4;
  constexpr int kKeys = 60;
  std::vector<std::string> names;
  for (int i = 0; i < kKeys; ++i) names.push_back("key " + std::to_string(i));
  std::atomic<int> runs{0};
  const SessionPtr session = here_.cache().session();
  const auto work = [&](int thread) {
    for (int begin = 0; begin < kKeys; begin += 5) {
      Keys keys;
      for (int i = 0; i < 15; ++i) keys.push_back(names[(begin + 7 * thread + i) % kKeys]);
      const BatchRequest request{row_context(), keys, ""};
      while (true) {
        BatchFound found = session->lookup_all(request, true);
        if (found.missing().empty()) break;
        BatchLead lead = session->lead_rows(found);
        if (lead.look_again) continue;
        Keys led;
        std::vector<EntryPtr> entries;
        for (const std::size_t i : lead.led) {
          led.push_back(keys[i]);
          entries.push_back(text_entry(std::string(keys[i])));
          ++runs;
        }
        session->store_all(row_context(), led, entries);
        if (!led.empty()) lead.lead.stored();
        lead.lead.give_up();
        (void)session->wait_for(request, lead.awaited);
      }
    }
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) threads.emplace_back(work, thread);
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(runs, kKeys);
}

}  // namespace
}  // namespace modcache::cache
