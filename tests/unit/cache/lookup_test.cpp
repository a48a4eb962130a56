// SPDX-License-Identifier: Apache-2.0
//
// Cache::lookup(): single keys and batches, in memory and on disk.
#include <gmock/gmock.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cache/cache.h"
#include "support/cache_fixture.h"
#include "support/captured_log.h"
#include "support/directory_bytes.h"

namespace modcache::cache {
namespace {

using ::testing::AllOf;
using testing::CacheTest;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::keys_of;
using testing::lookup_text;
using testing::Process;
using ::testing::SizeIs;
using testing::text_entry;
using testing::text_of;

class CacheLookupTest : public CacheTest {
 protected:
  Found find(const Keys& keys, const LookupOptions& options = testing::lookup_options()) {
    return here_.cache().lookup(keys, options);
  }
  // What was stored is found on disk only.
  void forget_memory() {
    here_.cache().flush();
    (void)here_.cache().clear({}, Cache::Tier::kMemory);
  }
  void expect_nothing_counted() {
    for (const char* const counter :
         {"hits_memory", "hits_disk", "saved_us", "misses", "key_conflicts", "errors"}) {
      EXPECT_EQ(here_.stat(counter), 0) << counter;
    }
  }
  void damage(const std::string& text, std::ptrdiff_t offset = 0) const {
    const std::string segment = testing::segment_files(dir_).front();
    testing::flip_bit(segment, testing::file_bytes(segment).find(text) + offset);
  }
};

// ----- single keys

TEST_F(CacheLookupTest, finds_what_was_stored_in_memory_and_counts_the_time_saved) {
  EXPECT_EQ(here_.lookup("key"), "<missing>");
  here_.store("key", "text", "", 250);
  EXPECT_EQ(here_.lookup("key"), "text");
  EXPECT_EQ(here_.lookup("key"), "text");
  EXPECT_EQ(here_.stat("stored"), 1);
  EXPECT_EQ(here_.stat("hits_memory"), 2);
  EXPECT_EQ(here_.stat("hits_disk"), 0);
  EXPECT_EQ(here_.stat("saved_us"), 500);
  EXPECT_EQ(here_.stat("misses"), 0) << "counted by the caller, who knows the rules";
}

TEST_F(CacheLookupTest, finds_on_disk_what_another_process_flushed_then_in_memory) {
  here_.store("key", "text", "float32[2]", 9);
  here_.cache().flush();
  Process there(dir_);
  EXPECT_EQ(there.lookup("key", "float32[2]"), "text");
  EXPECT_EQ(there.lookup("key", "float32[2]"), "text");
  EXPECT_EQ(there.stat("hits_disk"), 1);
  EXPECT_EQ(there.stat("hits_memory"), 1);
  EXPECT_EQ(there.stat("saved_us"), 18);
}

TEST_F(CacheLookupTest, without_a_memory_tier_finds_on_disk_what_is_still_queued) {
  ASSERT_TRUE(here_.configure({{"memory", "0"}}).is_ok());
  here_.store("key", "text");
  here_.store_rows({{"a", "1"}});
  EXPECT_EQ(here_.lookup("key"), "text");
  EXPECT_EQ(here_.lookup("key"), "text");
  EXPECT_THAT(here_.lookup_rows({"a"}), ElementsAre("disk: 1"));
  EXPECT_EQ(here_.stat("hits_disk"), 3);
  EXPECT_EQ(here_.stat("entries_memory"), 0);
}

TEST_F(CacheLookupTest, what_memory_evicted_is_still_on_disk) {
  here_.store("key", "text");
  ASSERT_TRUE(here_.configure({{"memory", "0"}}).is_ok());
  EXPECT_EQ(here_.stat("evicted"), 1);
  EXPECT_EQ(here_.lookup("key"), "text");
}

TEST_F(CacheLookupTest, an_entry_that_is_replaced_again_and_again_is_never_missing) {
  ASSERT_TRUE(here_.configure({{"disk", "0"}, {"memory", "1MB"}}).is_ok());
  here_.store("key", "text");
  std::atomic<bool> is_done{false};
  std::thread replacing([&] {
    for (int i = 0; i < 3000; ++i) here_.store("key", "text");
    is_done = true;
  });
  int misses = 0;
  while (!is_done) misses += here_.contains("key") ? 0 : 1;
  replacing.join();
  EXPECT_EQ(misses, 0);
}

TEST_F(CacheLookupTest, a_lookup_that_may_not_write_makes_no_directory) {
  EXPECT_EQ(here_.lookup("key", "", /*may_write=*/false), "<missing>");
  EXPECT_FALSE(std::filesystem::exists(dir_));
  EXPECT_EQ(here_.stat("errors"), 0);
}

// ----- batches

TEST_F(CacheLookupTest, rows_of_the_disk_stay_there) {
  here_.store_rows({{"a", "1"}, {"b", "2"}}, "", 10);
  here_.cache().flush();
  Process there(dir_);
  EXPECT_THAT(here_.lookup_rows({"b", "none", "a"}),
              ElementsAre("memory: 2", "<missing>", "memory: 1"));
  for (int turn = 0; turn < 2; ++turn) {
    EXPECT_THAT(there.lookup_rows({"b", "none", "a"}),
                ElementsAre("disk: 2", "<missing>", "disk: 1"));
  }
  EXPECT_EQ(here_.stat("hits_memory"), 2);
  EXPECT_EQ(here_.stat("saved_us"), 20);
  EXPECT_EQ(there.stat("hits_disk"), 4);
  EXPECT_EQ(there.stat("saved_us"), 40);
  EXPECT_EQ(there.stat("entries_memory"), 0);
}

TEST_F(CacheLookupTest, one_batch_takes_rows_from_memory_and_from_disk) {
  Process there(dir_);
  there.store_rows({{"a", "1"}, {"c", "3"}});
  there.cache().flush();
  here_.store_rows({{"b", "2"}});
  EXPECT_THAT(here_.lookup_rows({"a", "b", "c", "d"}),
              ElementsAre("disk: 1", "memory: 2", "disk: 3", "<missing>"));
  EXPECT_THAT(here_.lookup_rows({}), IsEmpty());
  EXPECT_EQ(here_.stat("hits_disk"), 2);
  EXPECT_EQ(here_.stat("hits_memory"), 1);
}

TEST_F(CacheLookupTest, counts_hits_only_when_they_were_used) {
  here_.store_rows({{"a", "1"}}, "", 5);
  const Keys rows = here_.rows({"a", "absent"});
  Found found = find(rows);
  EXPECT_THAT(found.missing(), ElementsAre(1u));
  Cache::skip(found, 0);
  EXPECT_THAT(found.missing(), ElementsAre(0u, 1u));
  here_.cache().count_hits(rows, found, /*may_write=*/true);
  expect_nothing_counted();
}

TEST_F(CacheLookupTest, a_silent_lookup_neither_counts_nor_promotes) {
  here_.store("key", "text", "float32[2]", 9);
  forget_memory();
  LookupOptions silent = testing::lookup_options();
  silent.is_silent = true;
  EXPECT_EQ(text_of(find(here_.keys("key"), silent)), "text");
  EXPECT_TRUE(find(here_.keys("key", "float32[3]"), silent).has_missing());
  EXPECT_EQ(here_.stat("entries_memory"), 0);
  expect_nothing_counted();
}

// ----- inputs

struct MatchCase {
  const char* match;
  const char* stored;
  const char* given;
  bool is_hit;
};
std::ostream& operator<<(std::ostream& out, const MatchCase& c) {
  return out << c.match << ": " << c.stored << " asked for with " << c.given;
}

class CacheMatchTest : public CacheTest, public ::testing::WithParamInterface<MatchCase> {};

TEST_P(CacheMatchTest, ComparesTheSignatureOfTheInput) {
  const testing::CapturedLog log;
  ASSERT_TRUE(here_.configure({{"match", GetParam().match}}).is_ok());
  here_.store("key", "text", GetParam().stored);
  EXPECT_EQ(here_.lookup("key", GetParam().given), GetParam().is_hit ? "text" : "<missing>");
  EXPECT_EQ(here_.stat("key_conflicts"), GetParam().is_hit ? 0 : 1);
}

INSTANTIATE_TEST_SUITE_P(
    Cache, CacheMatchTest,
    ::testing::Values(MatchCase{"input", "float32[2,3]", "float32[2,3]", true},
                      MatchCase{"input", "float32[2,3]", "float32[2,4]", false},
                      MatchCase{"input", "float32[2,3]", "float32[2,3,1]", false},
                      MatchCase{"input", "float32[2,3]", "float64[2,3]", false},
                      MatchCase{"input", "(float32[2],int64[2])", "float32[2]", false},
                      MatchCase{"input", "", "float32[2]", true},
                      MatchCase{"input", "float32[2]", "", true},
                      MatchCase{"none", "float32[2,3]", "float32[2,3]", true},
                      MatchCase{"none", "float32[2,3]", "int64[7]", true},
                      MatchCase{"none", "", "float32[2]", true},
                      MatchCase{"none", "float32[2]", "", true}));

// Each row holds its number. Row 100 and later ones cannot be measured.
class Numbers final : public InputSource {
 public:
  MeasuredInput measure(std::size_t row) const override {
    MeasuredInput measured;
    if (row < 100) measured.add_exact(&row, sizeof row);
    return measured;
  }
  bool is_costly() const override { return false; }
};

TEST_F(CacheLookupTest, compares_the_sample_of_the_input_in_memory_and_on_disk) {
  const testing::CapturedLog quiet;
  const Numbers numbers;
  const auto store = [&](std::string_view key, std::size_t row) {
    Entry entry = *text_entry("text of " + std::to_string(row));
    entry.sample = numbers.measure(row).sample();
    const EntryPtr entries[] = {std::make_shared<const Entry>(entry)};
    here_.cache().store(here_.keys(key), entries);
  };
  store("five", 5);
  store("unknown", 100);
  const auto found = [&](std::string_view key, std::size_t row) {
    Keys keys = here_.keys(key);
    keys.input = &numbers;
    keys.input_rows = {row};
    return find(keys).is_found(0);
  };
  for (int tier = 0; tier < 2; ++tier) {
    EXPECT_TRUE(found("five", 5));
    EXPECT_TRUE(found("five", 100)) << "an unknown input matches";
    EXPECT_TRUE(found("unknown", 6)) << "an unknown input matches";
    EXPECT_TRUE(find(here_.keys("five")).is_found(0)) << "no input is given";
    EXPECT_FALSE(found("five", 6));
    forget_memory();
  }
  ASSERT_TRUE(here_.configure({{"match", "none"}}).is_ok());
  EXPECT_TRUE(found("five", 6));
  EXPECT_EQ(here_.stat("key_conflicts"), 2);
}

TEST_F(CacheLookupTest, rows_of_another_input_are_conflicts_and_the_disk_is_not_asked_for_them) {
  testing::CapturedLog log;
  here_.store_rows({{"a", "1"}}, "float32[2]");
  here_.cache().flush();
  Process there(dir_);
  there.store_rows({{"b", "2"}}, "float32[2]");  // in memory, "a" on disk
  there.store_rows({{"c", "3"}}, "float32[3]");
  there.store_rows({{"d", "4"}});
  const Keys rows = there.rows({"a", "b", "c", "d", "e"}, "float32[3]");
  const Found found = there.cache().lookup(rows, {});
  EXPECT_THAT(found.conflicts(), ElementsAre(0u, 1u));
  EXPECT_THAT(found.missing(), ElementsAre(0u, 1u, 4u));
  EXPECT_EQ(there.stat("key_conflicts"), 2);
  EXPECT_THAT(log.about("key 'b' was stored for an input float32[2]"), SizeIs(1)) << "once";
}

TEST_F(CacheLookupTest, a_conflicting_key_is_replaced_and_warned_about_with_both_shapes) {
  const testing::CapturedLog log;
  here_.store("key", "one", "float32[2,3]");
  EXPECT_EQ(here_.lookup("key", "float32[2,4]"), "<missing>");
  here_.store("key", "two", "float32[2,4]");
  EXPECT_EQ(here_.lookup("key", "float32[2,4]"), "two");
  EXPECT_EQ(here_.stat("hits_memory"), 1);
  for (const auto& message : log.about("stored for an input")) {  // once per process and scope
    EXPECT_THAT(message, AllOf(HasSubstr("float32[2,3]"), HasSubstr("'key'")));
  }
}

TEST_F(CacheLookupTest, a_row_whose_shape_does_not_fit_can_be_refused_as_a_conflict) {
  const testing::CapturedLog quiet;
  here_.store_rows({{"a", "1"}});
  const Keys rows = here_.rows({"a"});
  Found found = find(rows);
  here_.cache().refuse_as_conflict(rows, found, 0);
  EXPECT_THAT(found.conflicts(), ElementsAre(0u));
  EXPECT_EQ(here_.stat("key_conflicts"), 1);
}

TEST_F(CacheLookupTest, a_share_of_costly_inputs_is_compared) {
  class Costly final : public InputSource {
    MeasuredInput measure(std::size_t) const override { return {}; }
    bool is_costly() const override { return true; }
  };
  const auto compares = [&](const InputSource& input) {
    return here_.cache().compares_input(*here_.cache().configuration(), "scope", input);
  };
  for (std::uint64_t i = 0; i < ConflictWatch::kFirstCostlyCalls; ++i) {
    EXPECT_TRUE(compares(Costly()));
  }
  EXPECT_FALSE(compares(Costly()));
  EXPECT_TRUE(compares(Numbers()));
  ASSERT_TRUE(here_.configure({{"match", "none"}}).is_ok());
  EXPECT_FALSE(compares(Numbers()));
}

// ----- other processes

TEST_F(CacheLookupTest, memory_answers_as_the_directory_would_when_entries_were_removed_there) {
  here_.store_rows({{"a", "1"}, {"b", "2"}, {"c", "3"}});
  here_.cache().flush();
  Process there(dir_);
  there.store_rows({{"a", "new"}});
  there.cache().flush();
  EXPECT_THAT(here_.lookup_rows({"a", "b", "c"}),
              ElementsAre("disk: new", "memory: 2", "memory: 3"));
  EXPECT_EQ(there.cache().clear({"", "b"}, Cache::Tier::kAll), 1);
  EXPECT_THAT(here_.lookup_rows({"a", "b", "c"}),
              ElementsAre("disk: new", "<missing>", "memory: 3"))
      << "compared with the directory, not read from it again";
  EXPECT_EQ(here_.stat("entries_memory"), 1);
}

TEST_F(CacheLookupTest, an_entry_that_another_process_replaced_or_cleared_is_not_found_in_memory) {
  here_.store("key", "one");
  here_.cache().flush();
  EXPECT_EQ(here_.lookup("key"), "one");
  Process there(dir_);
  there.store("key", "two");
  there.cache().flush();
  EXPECT_EQ(here_.lookup("key"), "two");
  EXPECT_EQ(there.cache().clear({}, Cache::Tier::kAll), 1);
  EXPECT_EQ(here_.lookup("key"), "<missing>");
}

// Sequences begin anew there: each directory calls its first entry the same.
TEST_F(CacheLookupTest, what_memory_holds_is_forgotten_where_another_directory_took_the_place) {
  const testing::CapturedLog quiet;
  here_.store_rows({{"a", "1"}, {"b", "2"}});
  here_.cache().flush();
  std::filesystem::remove_all(dir_);
  Process there(dir_);
  there.store_rows({{"a", "new"}});
  there.cache().flush();
  here_.cache().flush();  // looks at the files; the thread that writes would do so in a moment
  EXPECT_THAT(here_.lookup_rows({"a", "b"}), ElementsAre("disk: new", "<missing>"));
  EXPECT_EQ(there.cache().clear({}, Cache::Tier::kAll), 1);
  EXPECT_THAT(here_.lookup_rows({"a"}), ElementsAre("<missing>"));
}

// ----- damage

TEST_F(CacheLookupTest, a_damaged_value_is_one_miss_and_is_dropped) {
  const testing::CapturedLog quiet;
  here_.store("key", "the text of the key", "", 1000);
  forget_memory();
  damage("the text of the key");
  for (int turn = 0; turn < 2; ++turn) {
    EXPECT_EQ(here_.lookup("key"), "<missing>");
    EXPECT_EQ(here_.stat("corrupt"), 1);
  }
  EXPECT_EQ(here_.stat("hits_disk"), 0);
  EXPECT_EQ(here_.stat("saved_us"), 0);
  EXPECT_EQ(here_.stat("entries_disk"), 0);
}

TEST_F(CacheLookupTest, a_damaged_row_is_one_miss_and_is_dropped) {
  const testing::CapturedLog quiet;
  here_.store_rows({{"a", "the text of a"}, {"b", "the text of b"}}, "", 10);
  forget_memory();
  damage("the text of a");
  EXPECT_THAT(here_.lookup_rows({"a", "b"}), ElementsAre("<refused>", "disk: the text of b"));
  EXPECT_EQ(here_.stat("corrupt"), 1);
  EXPECT_EQ(here_.stat("hits_disk"), 1);
  EXPECT_EQ(here_.stat("saved_us"), 10);
  EXPECT_THAT(here_.lookup_rows({"a", "b"}), ElementsAre("<missing>", "disk: the text of b"));
  EXPECT_EQ(here_.stat("corrupt"), 1);
  EXPECT_EQ(here_.stat("entries_disk"), 1);
}

TEST_F(CacheLookupTest, a_damaged_record_is_one_miss_and_is_dropped) {
  const testing::CapturedLog quiet;
  here_.store_rows({{"a", "the text of a"}, {"b", "the text of b"}});
  forget_memory();
  here_.cache().close();
  damage("the text of a", -100);
  Process there(dir_);
  EXPECT_THAT(there.lookup_rows({"a", "b"}), ElementsAre("<missing>", "disk: the text of b"));
  EXPECT_EQ(there.stat("corrupt"), 1);
  EXPECT_EQ(there.stat("errors"), 0);
  EXPECT_EQ(there.stat("entries_disk"), 1);
}

TEST_F(CacheLookupTest, a_row_from_memory_that_is_refused_is_no_hit_and_stays_in_both_tiers) {
  here_.store_rows({{"a", "1"}, {"b", "2"}}, "", 10);
  const Keys rows = here_.rows({"a", "b", "none"});
  Found found = find(rows);
  for (int turn = 0; turn < 2; ++turn) {  // the second one finds nothing left to refuse
    here_.cache().refuse(rows, found, 0, Status::corruption("it does not fit"), true);
    EXPECT_THAT(found.missing(), ElementsAre(0u, 2u));
  }
  here_.cache().count_hits(rows, found, /*may_write=*/true);
  EXPECT_EQ(here_.stat("hits_memory"), 1);
  EXPECT_EQ(here_.stat("saved_us"), 10);
  EXPECT_EQ(here_.stat("corrupt"), 0);
  EXPECT_THAT(here_.lookup_rows({"a"}), ElementsAre("memory: 1"));
  here_.cache().flush();
  EXPECT_THAT(Process(dir_).lookup_rows({"a", "b"}), ElementsAre("disk: 1", "disk: 2"));
}

TEST_F(CacheLookupTest, a_directory_that_cannot_be_used_is_an_error_and_misses) {
  const testing::CapturedLog quiet;
  testing::write_file(directory_ / "a file", "");
  Process nowhere((directory_ / "a file") + "/cache", "0");
  nowhere.store_rows({{"a", "1"}, {"b", "2"}});
  EXPECT_THAT(nowhere.lookup_rows({"a", "b"}), ElementsAre("<missing>", "<missing>"));
  EXPECT_EQ(nowhere.stat("errors"), 1);
}

// ----- reading values

class CountingFormat final : public testing::TextFormat {
 public:
  std::vector<Result<std::shared_ptr<const Value>>> read_all(
      Form form, const FoundRows& found, const std::vector<std::size_t>& rows) const override {
    ++(form == Form::kRow ? as_rows : to_keep);
    return TextFormat::read_all(form, found, rows);
  }
  Result<std::shared_ptr<const Value>> read_once(const FoundRows& found,
                                                 std::size_t row) const override {
    ++once;
    return std::move(TextFormat::read_all(Form::kWhole, found, {row}).front());
  }
  mutable std::atomic<int> as_rows{0};
  mutable std::atomic<int> to_keep{0};
  mutable std::atomic<int> once{0};
};

TEST_F(CacheLookupTest, a_value_that_memory_has_no_room_for_is_read_to_be_handed_out_once) {
  here_.store("key", std::string(1000, 'x'));
  here_.cache().flush();
  for (const char* const memory : {"0", "500", "1MB"}) {
    const CountingFormat format;
    Cache cache(format);
    ASSERT_TRUE(cache.configure({{"dir", dir_}, {"memory", memory}}).is_ok());
    const bool has_room = std::string_view(memory) == "1MB";
    for (int call = 0; call < 2; ++call) {
      EXPECT_EQ(lookup_text(cache, keys_of(cache, "key")), std::string(1000, 'x'));
    }
    EXPECT_EQ(format.once, has_room ? 0 : 2) << memory;
    EXPECT_EQ(format.to_keep, has_room ? 1 : 0) << memory;
    EXPECT_EQ(cache.stats().at("hits_disk"), has_room ? 1 : 2) << memory;
  }
}

// A whole value is read by its own call; what is brought ahead for a device are rows.
TEST_F(CacheLookupTest, a_single_key_of_a_scope_on_a_device_is_not_read_ahead) {
  here_.store("key", "text");
  here_.cache().flush();
  const CountingFormat format;
  Cache cache(format);
  ASSERT_TRUE(cache.configure({{"dir", dir_}}).is_ok());
  cache.place("scope", {Place::Kind::kDevice, "cuda:0"});
  EXPECT_EQ(lookup_text(cache, keys_of(cache, "key")), "text@cuda:0");
  cache.wait_until_read_ahead();
  EXPECT_EQ(format.as_rows, 0);
  EXPECT_EQ(format.to_keep, 1);
}

// ----- inspect(), find_to_compare()

TEST_F(CacheLookupTest, inspect_describes_entries_of_all_tiers_and_counts_nothing) {
  here_.store("disk", "on disk", "float32[2]", 7);
  forget_memory();
  here_.store("memory", "text", "float32[2]", 8);
  const auto inspect = [&](std::string_view key, std::string_view signature) {
    return here_.cache().inspect(here_.keys(key, signature)).front();
  };
  const auto on_disk = inspect("disk", "float32[2]");
  ASSERT_TRUE(on_disk.has_value());
  EXPECT_FALSE(on_disk->is_in_memory);
  EXPECT_TRUE(on_disk->matches);
  EXPECT_EQ(on_disk->size_bytes, 7);
  EXPECT_EQ(on_disk->run_us, 7);
  const auto in_memory = inspect("memory", "float32[3]");
  ASSERT_TRUE(in_memory.has_value());
  EXPECT_TRUE(in_memory->is_in_memory);
  EXPECT_FALSE(in_memory->matches);
  EXPECT_EQ(in_memory->signature, "float32[2]");
  EXPECT_EQ(in_memory->size_bytes, 4);
  EXPECT_EQ(in_memory->run_us, 8);
  EXPECT_FALSE(here_.contains("other"));
  EXPECT_TRUE(here_.contains("disk"));
  expect_nothing_counted();
}

TEST_F(CacheLookupTest, find_to_compare_counts_no_hit_but_a_conflict) {
  const testing::CapturedLog quiet;
  here_.store("key", "text", "float32[2]");
  EXPECT_EQ(text_of(here_.cache().find_to_compare(here_.keys("key", "float32[2]"))), "text");
  EXPECT_EQ(here_.cache().find_to_compare(here_.keys("absent")), nullptr);
  EXPECT_EQ(here_.stat("key_conflicts"), 0);
  EXPECT_EQ(here_.cache().find_to_compare(here_.keys("key", "float32[3]")), nullptr);
  EXPECT_EQ(here_.stat("key_conflicts"), 1);
  EXPECT_EQ(here_.stat("hits_memory"), 0);
}

// ----- verify_share

TEST_F(CacheLookupTest, sampled_hits_are_neither_found_nor_missing) {
  here_.store_rows({{"a", "text"}, {"b", "text"}});
  const Keys before = here_.rows({"a", "absent", "b"});
  EXPECT_THAT(find(before, testing::run_options()).sampled(), IsEmpty());
  ASSERT_TRUE(here_.configure({{"verify_share", "1"}}).is_ok());
  const Keys rows = here_.rows({"a", "absent", "b"});
  const Found found = find(rows, testing::run_options());
  EXPECT_THAT(found.sampled(), ElementsAre(0u, 2u));
  EXPECT_THAT(found.missing(), ElementsAre(1u));
  EXPECT_EQ(text_of(found.entry(0)), "text") << "what the fresh result is compared with";
  here_.cache().count_hits(rows, found, /*may_write=*/true);
  EXPECT_EQ(here_.stat("hits_memory"), 0);
  EXPECT_THAT(find(rows).sampled(), IsEmpty()) << "the caller cannot run anything";
}

}  // namespace
}  // namespace modcache::cache
