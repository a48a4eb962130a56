// SPDX-License-Identifier: Apache-2.0
//
// Directories into packs and back, and packs as stores.
#include <gmock/gmock.h>

#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "store/packing/packing.h"
#include "support/child_process.h"
#include "support/directory_bytes.h"
#include "support/fault_file_system.h"
#include "support/pack_fixture.h"
#include "support/sealing.h"

namespace modcache::store {
namespace {

using testing::all_bytes;
using testing::context_named;
using ::testing::ElementsAre;
using testing::file_bytes;
using testing::get;
using ::testing::HasSubstr;
using testing::open_store;
using testing::PackTest;
using testing::put;

TEST_F(PackTest, holds_what_the_directory_held_bit_for_bit) {
  const std::vector<Context> contexts = {context_named("one"), context_named("one", "other form"),
                                         context_named(std::string("\0\xff", 2)),
                                         context_named("")};
  auto store = open_store(dir_);
  std::map<std::string, std::string> values;
  for (int i = 0; i < 40; ++i) {
    const std::string key = std::string(1, static_cast<char>(i)) + std::string(i * 37, 'k');
    values[key] = std::string(static_cast<std::size_t>(i) * i * 13, static_cast<char>('a' + i));
  }
  for (const Context& context : contexts) {
    for (const auto& [key, value] : values) {
      ASSERT_TRUE(
          put(*store, context, key, context.description + value, "header of " + key, 9).is_ok());
    }
  }
  ASSERT_TRUE(store->flush().is_ok());
  const PackSummary summary = pack();
  EXPECT_EQ(summary.entries, 160);
  EXPECT_EQ(summary.broken, 0);
  for (const ReadVia read_via : {ReadVia::kMmap, ReadVia::kPread}) {
    auto packed = open_pack_file(read_via);
    EXPECT_EQ(packed->totals().value().entries, 160);
    for (const Context& context : contexts) {
      for (const auto& [key, value] : values) {
        ASSERT_EQ(get(*packed, context, key), context.description + value);
        const auto in_pack = std::move(packed->find({context, key})).value();
        const auto in_directory = std::move(store->find({context, key})).value();
        EXPECT_EQ(in_pack->header(), "header of " + key);
        EXPECT_EQ(in_pack->run_us(), 9);
        EXPECT_EQ(in_pack->stored_at_us(), in_directory->stored_at_us());
      }
      EXPECT_EQ(get(*packed, context, "none"), "<missing>");
    }
    EXPECT_EQ(get(*packed, context_named("two"), "k"), "<missing>");
  }
}

TEST_F(PackTest, takes_one_scope_or_the_keys_that_begin_alike) {
  const std::map<std::string, std::string> notes = {
      {"manifest \nscope", "of other"},  {"manifest \nother", "text"},
      {"manifest \nother 2", "other"},   {"scopes \nA.forward", "5 scope\n5 other\n"},
      {"scopes \nother", "7 other 2\n"}, {"fingerprint 1", "other"},
      {"fingerprint 2", "other 2"},      {"file model.pt", "other"}};
  fill(20);
  {
    auto store = open_store(dir_);
    ASSERT_TRUE(put(*store, context_named("other"), "key 1", "other").is_ok());
    const Directory directory(files_, dir_);
    for (const auto& [about, text] : notes) {
      ASSERT_TRUE(keep_note(directory, about, text).is_ok());
    }
  }
  const PackSummary of_other = pack({"other", ""});
  EXPECT_EQ(of_other.entries, 1);
  EXPECT_EQ(of_other.notes, 3);
  auto packed = open_pack_file();
  EXPECT_EQ(get(*packed, context_named("other"), "key 1"), "other");
  EXPECT_EQ(get(*packed, context_, "key 1"), "<missing>");
  for (const char* about : {"manifest \nother", "scopes \nA.forward", "fingerprint 1"}) {
    EXPECT_TRUE(packed->find_note(about).is_ok()) << about;
  }
  EXPECT_EQ(pack({"", "key 1"}).entries, 12);
  EXPECT_EQ(pack({"scope", "key 19"}).entries, 1);
  EXPECT_EQ(pack().notes, 7);
  packed = open_pack_file();
  EXPECT_TRUE(packed->find_note("manifest \nscope").is_ok());
  EXPECT_TRUE(packed->find_note("file model.pt").is_not_found())
      << "paths of this machine stay on it";
}

TEST_F(PackTest, is_not_written_of_what_is_not_there) {
  fill(5);
  pack();
  const auto before = all_bytes(folder_.path());
  for (const ClearFilter& filter : {ClearFilter{"nobody", ""}, ClearFilter{"scope", "none"},
                                    ClearFilter{"", "none"}, ClearFilter{"", "", 1}}) {
    EXPECT_EQ(pack(filter).entries, 0);
    EXPECT_EQ(all_bytes(folder_.path()), before);
  }
}

TEST_F(PackTest, of_an_empty_directory_is_empty) {
  open_store(dir_);
  EXPECT_EQ(pack().entries, 0);
  EXPECT_EQ(get(*open_pack_file(), context_, "key"), "<missing>");
  EXPECT_EQ(unpack_into(files_, file_, options_of(other_)).value().entries, 0);
}

TEST_F(PackTest, of_a_directory_that_is_none_is_not_made) {
  EXPECT_TRUE(write_pack(files_, dir_, file_).status().is_not_found());
  EXPECT_FALSE(std::filesystem::exists(dir_));
  EXPECT_FALSE(std::filesystem::exists(file_));
  EXPECT_FALSE(std::filesystem::exists(file_ + ".new"));
}

TEST_F(PackTest, holds_what_many_entries_there_are) {
  constexpr int kEntries = 100000;
  auto store = open_store(dir_);
  const SharedBytes payload = share_bytes("payload");
  for (int begin = 0; begin < kEntries; begin += 1000) {
    std::vector<std::string> keys;
    for (int i = begin; i < begin + 1000; ++i) keys.push_back(key_of(i));
    std::vector<RowPut> puts;
    for (const std::string& key : keys) puts.push_back({key, "header", payload, 1, false, 0});
    std::vector<Sequence> sequences;
    ASSERT_TRUE(store->put_all(context_, puts, sequences).is_ok());
  }
  ASSERT_TRUE(store->flush().is_ok());
  std::int64_t told = 0;
  const auto summary =
      write_pack(files_, dir_, file_, {}, [&](const PackSummary& so_far, std::int64_t of_entries) {
        told = so_far.entries;
        EXPECT_EQ(of_entries, kEntries);
      });
  EXPECT_EQ(summary.value().entries, kEntries);
  EXPECT_EQ(told, kEntries);
  auto packed = open_pack_file();
  std::vector<std::string> keys;
  for (int i = -1000; i < kEntries; ++i) keys.push_back(key_of(i));
  for (int times = 0; times < 2; ++times) {
    const FoundEntries found = packed->find_all(context_, {keys.begin(), keys.end()});
    for (std::size_t i = 0; i < keys.size(); ++i) {
      ASSERT_EQ(found.has(i), i >= 1000) << keys[i];
      char bytes[7];
      if (!found.has(i)) continue;
      ASSERT_TRUE(found.read(i, bytes).is_ok());
    }
    EXPECT_THAT(found.failures(), ::testing::IsEmpty());
  }
}

// ----- as a store

TEST_F(PackTest, finds_many_at_once_as_it_finds_one) {
  fill(50);
  pack();
  for (const ReadVia read_via : {ReadVia::kMmap, ReadVia::kPread}) {
    auto packed = open_pack_file(read_via);
    for (int times = 0; times < 2; ++times) {
      const FoundEntries found = packed->find_all(context_, {"key 3", "none", "key 4"});
      ASSERT_TRUE(found.has(0) && !found.has(1) && found.has(2));
      std::string payload(found.payload_size_bytes(2), '?');
      ASSERT_TRUE(found.read(2, payload.data()).is_ok());
      EXPECT_EQ(payload, value_of(4));
      EXPECT_THAT(packed->are_current(context_, {"key 3", "none", "key 4"},
                                      {found.sequence(0), 1, found.sequence(0)}),
                  ElementsAre(true, false, false));
    }
  }
}

TEST_F(PackTest, is_never_changed) {
  fill(5);
  pack();
  const auto before = all_bytes(folder_.path());
  auto packed = open_pack_file();
  EXPECT_TRUE(packed->is_read_only());
  EXPECT_EQ(put(*packed, context_, "key", "value").value(), 0u) << "not kept, and no failure";
  std::vector<Sequence> sequences;
  EXPECT_TRUE(
      packed->put_all(context_, {{"key", "header", share_bytes("value"), 1, false, 0}}, sequences)
          .is_ok());
  EXPECT_THAT(sequences, ElementsAre(0));
  EXPECT_EQ(get(*packed, context_, "key"), "<missing>");
  EXPECT_TRUE(packed->keep_note("about", "text").is_ok());
  EXPECT_TRUE(packed->drop({context_, "key 1"}, 1).is_ok());
  EXPECT_EQ(get(*packed, context_, "key 1"), value_of(1));
  const Status status = packed->clear({}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("is a pack"));
  EXPECT_EQ(packed->evict(0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(packed->flush().is_ok());
  packed = nullptr;
  EXPECT_EQ(all_bytes(folder_.path()), before);
}

TEST_F(PackTest, opens_where_only_reading_is_allowed_and_by_several_processes) {
  fill(5);
  pack();
  namespace fs = std::filesystem;
  fs::permissions(file_, fs::perms::owner_read);
  fs::permissions(folder_.path(), fs::perms::owner_read | fs::perms::owner_exec);
  auto packed = open_pack_file();
  testing::ChildProcess child([&] {
    StoreOptions options = options_of(file_);
    auto own = Store::open(files_, options);
    return own.is_ok() && get(*own.value(), context_, "key 4") == value_of(4) ? 0 : 1;
  });
  EXPECT_EQ(get(*packed, context_, "key 3"), value_of(3));
  EXPECT_EQ(child.wait(), 0);
  fs::permissions(folder_.path(), fs::perms::owner_all);
}

TEST_F(PackTest, is_left_when_another_takes_its_place) {
  fill(5);
  pack();
  auto packed = open_pack_file();
  const auto removals = packed->removals();
  EXPECT_EQ(get(*packed, context_, "key 1"), value_of(1));
  const auto held = std::move(packed->find({context_, "key 1"})).value();
  pack({"", "key 2"});
  EXPECT_EQ(get(*packed, context_, "key 2"), value_of(2)) << "what is open stays whole";
  std::this_thread::sleep_for(std::chrono::milliseconds(110));
  (void)packed->totals();
  EXPECT_FALSE(packed->is_attached());
  packed = open_pack_file();
  EXPECT_NE(packed->removals(), removals);
  EXPECT_FALSE(packed->is_current({context_, "key 1"}, held->sequence()));
}

TEST_F(PackTest, another_file_is_refused_by_name) {
  testing::write_file(file_, "some text that somebody wrote, longer than the header of a segment");
  const Status text = Store::open(files_, options_of(file_)).status();
  EXPECT_EQ(text.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(text.message(), HasSubstr("no pack"));
  testing::write_file(file_, "");
  EXPECT_FALSE(Store::open(files_, options_of(file_)).is_ok());
  fill(1);
  std::filesystem::copy_file(testing::segment_files(dir_).front(), file_,
                             std::filesystem::copy_options::overwrite_existing);
  const Status segment = Store::open(files_, options_of(file_)).status();
  EXPECT_EQ(segment.code(), StatusCode::kCorruption);
  EXPECT_THAT(segment.message(), HasSubstr("no footer"));
  EXPECT_EQ(unpack_into(files_, file_, options_of(other_)).status().code(),
            StatusCode::kCorruption);
  EXPECT_FALSE(std::filesystem::exists(other_)) << "nothing is made of what is no pack";
}

TEST_F(PackTest, of_another_version_is_refused) {
  fill(1);
  pack();
  const std::string bytes = file_bytes(file_);
  for (const char version : {1, 3}) {
    std::string footer = bytes.substr(bytes.size() - kPackFooterSizeBytes);
    footer[12] = version;
    testing::seal(footer, 0, footer.size());
    testing::write_file(file_, bytes.substr(0, bytes.size() - footer.size()) + footer);
    const Status status = Store::open(files_, options_of(file_)).status();
    EXPECT_EQ(status.code(), StatusCode::kUnsupportedVersion);
    EXPECT_THAT(status.message(), HasSubstr("format version " + std::to_string(version)));
    EXPECT_EQ(unpack_into(files_, file_, options_of(other_)).status().code(),
              StatusCode::kUnsupportedVersion);
  }
}

// ----- in the making

TEST_F(PackTest, is_made_while_others_write_and_clear) {
  fill(500);
  testing::Pipe is_writing;
  testing::ChildProcess writer([&] {
    auto store = open_store(dir_);
    for (int i = 0;; ++i) {
      if (!put(*store, context_, "new " + std::to_string(i), "new").is_ok()) return 1;
      if (!put(*store, context_, key_of(i % 100), value_of(i % 100)).is_ok()) return 2;
      if (i % 20 == 0 && !store->flush().is_ok()) return 3;
      if (i % 50 == 0 && !store->clear({"scope", "new"}).is_ok()) return 4;
      if (i == 50) is_writing.write('w');
    }
  });
  is_writing.close_writing();
  char byte = 0;
  ASSERT_TRUE(is_writing.read(byte));
  for (int times = 0; times < 5; ++times) {
    EXPECT_EQ(pack().broken, 0);
    auto packed = open_pack_file();
    for (int i = 0; i < 500; ++i) ASSERT_EQ(get(*packed, context_, key_of(i)), value_of(i)) << i;
  }
}

TEST_F(PackTest, passes_over_what_is_damaged_in_the_directory) {
  fill(50);
  const std::string segment = testing::segment_files(dir_).front();
  const std::string bytes = file_bytes(segment);
  testing::flip_bit(segment, bytes.find(value_of(7)));
  const PackSummary summary = pack();
  EXPECT_EQ(summary.entries, 49);
  EXPECT_EQ(summary.broken, 1);
  auto packed = open_pack_file();
  EXPECT_EQ(get(*packed, context_, key_of(7)), "<missing>");
  EXPECT_EQ(get(*packed, context_, key_of(8)), value_of(8));
}

TEST_F(PackTest, appears_whole_or_not_at_all) {
  fill(50);
  pack();
  const std::string before = file_bytes(file_);
  for (const auto fault :
       {testing::Fault::kNoSpace, testing::Fault::kIoError, testing::Fault::kShortWrite}) {
    testing::FaultFileSystem faults(files_);
    std::int64_t failed = 0;
    for (std::int64_t call = 1;; ++call) {
      faults.fail_at(call, fault);
      const auto summary = write_pack(faults, dir_, file_);
      if (faults.failures() == 0) break;
      ++failed;
      const bool is_whole = open_pack_file() != nullptr;
      EXPECT_TRUE(is_whole) << call;
      EXPECT_FALSE(std::filesystem::exists(file_ + ".new") && summary.is_ok()) << call;
    }
    EXPECT_GE(failed, 4) << "opening, writing, syncing, renaming";
  }
}

TEST_F(PackTest, is_synced_before_it_has_its_name) {
  fill(5);
  testing::FaultFileSystem watched(files_);
  ASSERT_TRUE(write_pack(watched, dir_, file_).is_ok());
  const auto syncs = watched.take_syncs();
  const auto name = std::filesystem::path(file_).filename().string();
  EXPECT_THAT(
      syncs, ElementsAre(name + ".new", std::filesystem::path(folder_.path()).filename().string()));
}

TEST_F(PackTest, is_made_by_one_at_a_time_and_goes_over_what_a_dead_one_left) {
  fill(5);
  testing::write_file(file_ + ".new", "left by a process that died");
  EXPECT_EQ(pack().entries, 5);
  auto making = files_.open(file_ + ".new", fs::OpenMode::kReadWriteCreate);
  ASSERT_TRUE(making.value()->try_lock().value());
  EXPECT_EQ(write_pack(files_, dir_, file_).status().code(), StatusCode::kBusy);
  EXPECT_TRUE(std::filesystem::exists(file_ + ".new"));
}

}  // namespace
}  // namespace modcache::store
