// SPDX-License-Identifier: Apache-2.0
#include "store/verify/verify.h"

#include <gmock/gmock.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "store/control/control_page.h"
#include "store/directory/directory.h"
#include "store/directory/notes.h"
#include "store/index/database.h"
#include "store/segment/retired_segments.h"
#include "store/segment/segment_writer.h"
#include "store/segment/tombstone.h"
#include "support/directory_bytes.h"
#include "support/store_fixture.h"
#include "support/verify_fixture.h"

namespace modcache::store {
namespace {

using ::testing::Contains;
using testing::context_named;
using ::testing::ElementsAre;
using testing::get;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::open_store;
using testing::put;
using testing::segment_files;

using testing::value_of;
using VerifyTest = testing::VerifyTest;

TEST_F(VerifyTest, finds_nothing_in_a_sound_directory_and_changes_nothing) {
  fill();
  const auto before = testing::all_bytes(directory_.path());
  const Verification verification = verify();
  EXPECT_TRUE(verification.is_clean());
  EXPECT_THAT(verification.findings, IsEmpty());
  EXPECT_EQ(verification.entries, kEntries);
  EXPECT_EQ(verification.whole_entries, kEntries);
  EXPECT_EQ(verification.segments, 1);
  EXPECT_GT(verification.bytes_read, kEntries * 300u);
  EXPECT_EQ(testing::all_bytes(directory_.path()), before);
}

TEST_F(VerifyTest, reads_what_is_only_in_the_log_whose_shared_memory_is_gone) {
  auto store = open_store(directory_.path());
  ASSERT_TRUE(put(*store, context_, "key", "value").is_ok());
  ASSERT_TRUE(store->flush().is_ok());
  const std::string copy =
      directory_ / "../" + std::filesystem::path(directory_.path()).filename().string() + "-copy";
  std::filesystem::copy(directory_.path(), copy, std::filesystem::copy_options::recursive);
  std::filesystem::remove(copy + "/index.sqlite-shm");
  VerifyOptions options;
  options.directory = copy;
  const auto before = testing::all_bytes(copy);
  const Verification verification = verify(options);
  EXPECT_TRUE(verification.is_clean());
  EXPECT_EQ(verification.whole_entries, 1);
  EXPECT_EQ(testing::all_bytes(copy), before);
  std::filesystem::remove_all(copy);
}

// A writer leaves such a log when it is killed before the first page of a new one.
TEST_F(VerifyTest, reads_a_directory_whose_log_ends_with_its_header) {
  const std::string log_path = directory_ / "index.sqlite-wal";
  std::string log;
  {
    auto store = open_store(directory_.path());
    ASSERT_TRUE(put(*store, context_, "key", "value").is_ok());
    ASSERT_TRUE(store->flush().is_ok());
    log = testing::file_bytes(log_path);
  }
  ASSERT_GT(log.size(), 32u);
  testing::write_file(log_path, log.substr(0, 32));
  ASSERT_TRUE(std::filesystem::exists(directory_ / "index.sqlite-shm"));
  const Verification verification = verify();
  EXPECT_TRUE(verification.is_clean());
  EXPECT_EQ(verification.whole_entries, 1);
}

TEST_F(VerifyTest, refuses_what_is_no_directory_of_modcache) {
  EXPECT_EQ(verify_directory(fs::posix_file_system(), options()).status().code(),
            StatusCode::kInvalidArgument);
  VerifyOptions missing = options();
  missing.directory += "/missing";
  EXPECT_TRUE(verify_directory(fs::posix_file_system(), missing).is_not_found());
}

TEST_F(VerifyTest, tells_which_entry_is_broken_and_where_and_mending_drops_that_one) {
  fill();
  testing::flip_bit(segment(), std::filesystem::file_size(segment()) - 200);
  const Verification verification = verify();
  ASSERT_EQ(verification.findings.size(), 1u);
  const Finding& finding = verification.findings[0];
  EXPECT_EQ(finding.kind, Finding::Kind::kEntryBroken);
  EXPECT_EQ(finding.key, std::to_string(kEntries - 1));
  EXPECT_EQ(finding.scope, "scope");
  EXPECT_EQ(directory_ / finding.file, segment());
  EXPECT_GT(finding.offset, 0u);
  const Repairs repairs = repair();
  EXPECT_TRUE(repairs.after.is_clean());
  EXPECT_EQ(repairs.dropped, 1);
  EXPECT_EQ(repairs.after.whole_entries, kEntries - 1);
  EXPECT_EQ(count_right(), kEntries - 1);
}

TEST_F(VerifyTest, takes_back_rows_that_the_database_lost) {
  fill();
  change_rows("DELETE FROM entries WHERE sequence%3=0");
  EXPECT_THAT(kinds_of(verify()), ElementsAre("rows-lost"));
  const Repairs repairs = repair();
  EXPECT_TRUE(repairs.after.is_clean());
  EXPECT_GT(repairs.recovered, 0);
  EXPECT_EQ(count_right(), kEntries);
}

TEST_F(VerifyTest, does_not_take_back_what_was_cleared_or_replaced_or_dropped_after_replacing) {
  const Context other = context_named("other");
  {
    auto store = open_store(directory_.path());
    for (const char* value : {"old", "new"}) {
      ASSERT_TRUE(put(*store, context_, "replaced", value).is_ok());
      ASSERT_TRUE(put(*store, context_, "dropped", value).is_ok());
      ASSERT_TRUE(put(*store, other, "cleared", value).is_ok());
      ASSERT_TRUE(put(*store, context_, "lost", value).is_ok());
      ASSERT_TRUE(store->flush().is_ok());
    }
    ASSERT_TRUE(store->clear({"other", ""}).is_ok());
    const auto sequence = store->find({context_, "dropped"}).value()->sequence();
    ASSERT_TRUE(store->drop({context_, "dropped"}, sequence).is_ok());
  }
  change_rows("DELETE FROM entries WHERE key=CAST('lost' AS BLOB)");
  EXPECT_TRUE(repair().after.is_clean());
  auto store = open_store(directory_.path());
  EXPECT_EQ(get(*store, context_, "replaced"), "new");
  EXPECT_EQ(get(*store, context_, "lost"), "new");
  EXPECT_EQ(get(*store, context_, "dropped"), "<missing>");
  EXPECT_EQ(get(*store, other, "cleared"), "<missing>");
}

TEST_F(VerifyTest, a_record_without_a_row_is_no_damage) {
  fill();
  {
    auto store = open_store(directory_.path());
    const auto sequence = store->find({context_, "3"}).value()->sequence();
    ASSERT_TRUE(store->drop({context_, "3"}, sequence).is_ok());
  }
  const Verification verification = verify();
  EXPECT_TRUE(verification.is_clean());
  EXPECT_EQ(verification.unnamed_records, 1);
}

TEST_F(VerifyTest, makes_a_broken_or_missing_database_anew) {
  fill();
  const std::string database = directory_ / "index.sqlite";
  for (const std::string& bytes : {std::string(), std::string(9000, 'x')}) {
    testing::write_file(database, bytes);
    EXPECT_THAT(kinds_of(verify()), ElementsAre("database-broken"));
    EXPECT_TRUE(repair().after.is_clean());
    EXPECT_EQ(count_right(), kEntries);
  }
  std::filesystem::remove(database);
  EXPECT_FALSE(verify().is_clean());
  EXPECT_TRUE(repair().after.is_clean());
  EXPECT_EQ(count_right(), kEntries);
}

TEST_F(VerifyTest, gives_swapped_segments_their_names_back) {
  fill();
  auto first = open_store(directory_.path());
  auto second = open_store(directory_.path());
  ASSERT_TRUE(put(*first, context_, "first", "1").is_ok());
  ASSERT_TRUE(first->flush().is_ok());
  ASSERT_TRUE(put(*second, context_, "second", "2").is_ok());
  ASSERT_TRUE(second->flush().is_ok());
  first = nullptr;
  second = nullptr;
  const auto segments = segment_files(directory_.path());
  ASSERT_EQ(segments.size(), 2u);
  std::filesystem::rename(segments[0], directory_ / "swapped");
  std::filesystem::rename(segments[1], segments[0]);
  std::filesystem::rename(directory_ / "swapped", segments[1]);
  EXPECT_EQ(verify().counts[Finding::Kind::kSegmentBroken], 2);
  const Repairs repairs = repair();
  EXPECT_TRUE(repairs.after.is_clean());
  EXPECT_EQ(repairs.after.whole_entries, kEntries + 2);
  EXPECT_EQ(count_right(), kEntries);
}

TEST_F(VerifyTest, writes_a_lost_declaration_again) {
  fill();
  // The first record declares the context.
  testing::flip_bit(segment(), 64 + 82);
  EXPECT_THAT(kinds_of(verify()), ElementsAre("context-undeclared"));
  EXPECT_TRUE(repair().after.is_clean());
  std::filesystem::remove(directory_ / "index.sqlite");
  EXPECT_EQ(count_right(), kEntries);
}

TEST_F(VerifyTest, writes_a_lost_clear_again) {
  fill();
  {
    auto store = open_store(directory_.path());
    ASSERT_EQ(store->clear({"scope", "1"}).value(), 11);
    ASSERT_TRUE(store->flush().is_ok());
  }
  // The last record is the clear.
  testing::flip_bit(segment(), std::filesystem::file_size(segment()) - 100);
  EXPECT_THAT(kinds_of(verify()), ElementsAre("clear-lost"));
  EXPECT_TRUE(repair().after.is_clean());
  std::filesystem::remove(directory_ / "index.sqlite");
  auto store = open_store(directory_.path());
  for (const char* key : {"1", "10", "19"}) EXPECT_EQ(get(*store, context_, key), "<missing>");
}

TEST_F(VerifyTest, finds_and_makes_anew_control_page_and_lock) {
  fill();
  std::filesystem::remove(directory_ / "control");
  std::filesystem::remove(directory_ / "lock");
  EXPECT_THAT(kinds_of(verify()), ElementsAre("control-broken", "lock-missing"));
  EXPECT_TRUE(repair().after.is_clean());
  testing::write_file(directory_ / "control", std::string(5000, 'x'));
  EXPECT_THAT(kinds_of(verify()), ElementsAre("control-broken"));
  EXPECT_TRUE(repair().after.is_clean());
}

TEST_F(VerifyTest, finds_broken_notes_and_removes_them_and_leftovers) {
  fill();
  const Directory directory(fs::posix_file_system(), directory_.path());
  ASSERT_TRUE(keep_note(directory, "kept", "text").is_ok());
  ASSERT_TRUE(keep_note(directory, "broken", "text").is_ok());
  const std::string note = directory.notes_path() + "/" + blake2b_128("broken").hex();
  testing::flip_bit(note, std::filesystem::file_size(note) - 1);
  testing::write_file(directory_ / "index.sqlite.new", "half");
  testing::write_file(directory_ / "control.new", "half");
  const Verification verification = verify();
  EXPECT_EQ(verification.notes, 2);
  EXPECT_EQ(verification.damage, 1);
  EXPECT_THAT(kinds_of(verification), ElementsAre("note-broken", "leftover"));
  EXPECT_THAT(repair().after.findings, IsEmpty());
  EXPECT_EQ(find_note(directory, "kept").value(), "text");
  EXPECT_FALSE(std::filesystem::exists(note));
}

TEST_F(VerifyTest, asks_the_caller_about_values_and_drops_what_it_refuses) {
  fill();
  VerifyOptions checked = options();
  checked.check_value = [](const VerifiedEntry& entry) {
    EXPECT_EQ(entry.header, "header");
    return entry.key == "7" ? Status::corruption("no value") : Status::ok();
  };
  EXPECT_THAT(kinds_of(verify(checked)), ElementsAre("value-refused"));
  auto repairs = repair_directory(fs::posix_file_system(), checked);
  ASSERT_TRUE(repairs.is_ok());
  EXPECT_EQ(repairs.value().dropped, 1);
  EXPECT_TRUE(repairs.value().after.is_clean());
}

TEST_F(VerifyTest, keeps_some_findings_and_counts_all) {
  fill();
  std::filesystem::remove(segment());
  VerifyOptions few = options();
  few.most_findings = 3;
  std::int64_t seen = 0;
  few.on_progress = [&](const VerifyProgress& progress) { seen = progress.entries_done; };
  const Verification verification = verify(few);
  EXPECT_EQ(verification.findings.size(), 3u);
  EXPECT_EQ(verification.counts.at(Finding::Kind::kEntryBroken), kEntries);
  EXPECT_EQ(seen, kEntries);
}

// Entries that are put, replaced, dropped and cleared meanwhile are not damage.
TEST_F(VerifyTest, finds_no_damage_while_others_write) {
  fill();
  std::atomic<bool> is_over{false};
  // Bounded, as a look would take longer with each round.
  std::atomic<int> rounds_allowed{10};
  std::thread writer([&] {
    auto store = open_store(directory_.path());
    for (int round = 0; !is_over; ++round) {
      while (round >= rounds_allowed && !is_over) std::this_thread::yield();
      for (int i = 0; i < 30; ++i) {
        (void)put(*store, context_, "w" + std::to_string(i), value_of(round));
      }
      (void)store->flush();
      if (round % 5 == 4) (void)store->clear({"", round % 10 == 9 ? "w" : ""});
    }
  });
  for (int i = 0; i < 25; ++i) {
    rounds_allowed += 10;
    const Verification verification = verify();
    for (const Finding& finding : verification.findings) {
      ADD_FAILURE() << finding_name(finding.kind) << " " << finding.file << " " << finding.key
                    << ": " << finding.what;
    }
  }
  is_over = true;
  writer.join();
}

TEST_F(VerifyTest, begins_again_when_the_control_page_is_replaced_meanwhile) {
  fill();
  int looks = 0;
  VerifyOptions options = this->options();
  options.on_progress = [&](const VerifyProgress&) { ++looks; };
  EXPECT_TRUE(verify(options).is_clean());
  const int looks_of_one = std::exchange(looks, 0);
  options.on_progress = [&](const VerifyProgress&) {
    if (++looks > 1) return;
    const std::string control = directory_ / "control";
    std::filesystem::copy_file(control, control + ".copy");
    std::filesystem::rename(control + ".copy", control);
  };
  const Verification verification = verify(options);
  EXPECT_TRUE(verification.is_clean());
  EXPECT_EQ(verification.entries, kEntries);
  EXPECT_EQ(looks, 2 * looks_of_one);
}

// The move comes between the listing of the segments and the reading of the last of them.
TEST_F(VerifyTest, believes_in_no_lost_clear_that_was_moved_meanwhile) {
  const Directory directory(fs::posix_file_system(), directory_.path());
  auto one = open_store(directory_.path());
  ASSERT_TRUE(put(*one, context_, "cleared 1", "x").is_ok() && one->flush().is_ok());
  const std::uint64_t segment_of_one = directory.segments().value().at(0);
  auto two = open_store(directory_.path());
  ASSERT_TRUE(put(*two, context_, "cleared 2", "x").is_ok() && two->flush().is_ok());
  ASSERT_TRUE(put(*one, context_, "stays 1", "x").is_ok() && one->flush().is_ok());
  ASSERT_TRUE(put(*two, context_, "stays 2", "x").is_ok() && two->flush().is_ok());
  ASSERT_EQ(directory.segments().value().size(), 2u);
  const std::uint64_t last = directory.segments().value().back();
  const ClearFilter filter{"scope", "cleared"};
  ASSERT_EQ((last == segment_of_one ? one : two)->clear(filter).value(), 2);
  VerifyOptions options = this->options();
  int calls = 0;
  options.on_progress = [&](const VerifyProgress&) {
    if (++calls != 2) return;  // after the rows, and after each segment
    auto control =
        ControlPage::open(directory.file_system(), directory.control_path(), ReadVia::kPread, true);
    SegmentWriter writer(directory, 1 << 20);
    const Clear clear{filter, control.value()->committed()};
    ASSERT_TRUE(writer.append({tombstone_of(clear)}).is_ok());
    ASSERT_TRUE(retire_segment(directory, last).is_ok());
    control.value()->add_reclaim();
  };
  EXPECT_THAT(kinds_of(verify(options)), Not(Contains("clear-lost")));
  EXPECT_GE(calls, 2);
}

}  // namespace
}  // namespace modcache::store
