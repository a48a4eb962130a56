// SPDX-License-Identifier: Apache-2.0
//
// A pack in the place of a directory.
#include <gmock/gmock.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cache/entry_header.h"
#include "fs/posix_file_system.h"
#include "store/packing/packing.h"
#include "support/cache_fixture.h"
#include "support/captured_log.h"
#include "support/directory_bytes.h"

namespace modcache::cache {
namespace {

using testing::CacheTest;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Process;
using ::testing::SizeIs;

class CachePackTest : public CacheTest {
 protected:
  void pack() {
    here_.cache().flush();
    ASSERT_TRUE(here_.configure({{"dir", directory_ / "elsewhere"}}).is_ok());
    ASSERT_TRUE(store::write_pack(fs::posix_file_system(), dir_, pack_).is_ok());
  }
  const std::string pack_ = directory_ / "model.pack";
};

TEST_F(CachePackTest, hits_and_writes_nothing) {
  const testing::CapturedLog log;
  here_.store("key", "text", "float32[2]", 9);
  here_.cache().keep_note("about", "noted", Mode::kOn);
  pack();
  const auto before = testing::all_bytes(directory_.path());
  {
    Process there(pack_);
    EXPECT_EQ(there.cache().mode(), Mode::kOn);
    EXPECT_EQ(there.lookup("key", "float32[2]"), "text");
    EXPECT_EQ(there.lookup("key", "float32[2]"), "text");
    EXPECT_EQ(there.stat("hits_disk"), 1);
    EXPECT_EQ(there.stat("hits_memory"), 1);
    EXPECT_EQ(there.stat("saved_us"), 18);
    EXPECT_EQ(there.stat("entries_disk"), 1);
    EXPECT_EQ(there.stat("bytes_disk"),
              static_cast<std::int64_t>(std::filesystem::file_size(pack_)));
    EXPECT_TRUE(there.contains("key"));
    EXPECT_FALSE(there.contains("other"));
    EXPECT_EQ(there.cache().find_note("about", Mode::kOn), "noted");
    there.cache().keep_note("other", "noted", Mode::kOn);
    there.store("other", "computed here");
    EXPECT_EQ(there.lookup("other"), "computed here") << "memory has it";
    there.cache().flush();
    EXPECT_EQ(there.stat("errors"), 0);
  }
  EXPECT_EQ(testing::all_bytes(directory_.path()), before);
  EXPECT_THAT(log.about("pack"), IsEmpty());
}

TEST_F(CachePackTest, what_is_not_in_it_is_a_miss_for_the_next_process) {
  here_.store("key", "text");
  pack();
  {
    Process there(pack_);
    there.store("other", "computed here");
  }
  EXPECT_EQ(Process(pack_).lookup("other"), "<missing>");
}

TEST_F(CachePackTest, no_entry_of_it_is_too_old) {
  {
    store::StoreOptions options;
    options.directory = dir_;
    auto store = store::Store::open(fs::posix_file_system(), std::move(options));
    ASSERT_TRUE(store.is_ok());
    const ContextPtr context = testing::context_of(Form::kWhole);
    const std::string header = pack_header("", testing::TextValue::kHeader);
    std::vector<store::Sequence> sequences;
    ASSERT_TRUE(store.value()
                    ->put_all(*context, {{"key", header, share_bytes("text"), 0, false, 1'000'000}},
                              sequences)
                    .is_ok());
  }
  pack();
  Process there(pack_);
  ASSERT_TRUE(there.configure({{"max_age", "60"}}).is_ok());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(there.lookup("key"), "text");
  EXPECT_EQ(there.stat("hits_disk"), 1);
  EXPECT_EQ(there.stat("hits_memory"), 2) << "read from the pack each time";
}

TEST_F(CachePackTest, another_pack_in_its_place_is_seen_although_memory_has_the_entry) {
  here_.store("key", "one");
  pack();
  Process there(pack_);
  EXPECT_EQ(there.lookup("key"), "one");
  const std::string other = directory_ / "other";
  {
    Process maker(other);
    maker.store("key", "two");
    maker.cache().flush();
  }
  ASSERT_TRUE(store::write_pack(fs::posix_file_system(), other, pack_).is_ok());
  // It looks every tenth of a second.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (there.lookup("key") != "two" && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_EQ(there.lookup("key"), "two");
}

TEST_F(CachePackTest, clearing_it_clears_memory_and_says_why_no_more) {
  const testing::CapturedLog log;
  here_.store("key", "text");
  pack();
  Process there(pack_);
  EXPECT_EQ(there.lookup("key"), "text");
  EXPECT_EQ(there.cache().clear({}, Cache::Tier::kAll), 0);
  EXPECT_EQ(there.lookup("key"), "text");
  EXPECT_THAT(log.about("is a pack"), SizeIs(1));
}

TEST_F(CachePackTest, a_file_that_is_no_pack_is_one_line_and_no_more) {
  const testing::CapturedLog log;
  testing::write_file(pack_, std::string(5000, 'x'));
  Process there(pack_);
  EXPECT_EQ(there.lookup("key"), "<missing>");
  there.store("key", "text");
  EXPECT_EQ(there.lookup("key"), "text");
  EXPECT_EQ(there.stat("errors"), 1);
  EXPECT_THAT(log.about("no pack of modcache"), SizeIs(1));
  EXPECT_EQ(testing::file_bytes(pack_), std::string(5000, 'x'));
}

TEST_F(CachePackTest, a_damaged_entry_is_counted_and_a_miss) {
  const testing::CapturedLog log;
  here_.store("key", "some text that is stored");
  here_.store("other", "another text");
  pack();
  const std::string bytes = testing::file_bytes(pack_);
  testing::flip_bit(pack_, bytes.find("some text"));
  Process there(pack_);
  EXPECT_EQ(there.lookup("key"), "<missing>");
  EXPECT_EQ(there.stat("corrupt"), 1);
  EXPECT_EQ(there.lookup("other"), "another text");
}

TEST_F(CachePackTest, process_and_thread_may_turn_it_off) {
  here_.store("key", "text");
  pack();
  Process there(pack_);
  const ModeGuard guard(Mode::kRead);
  EXPECT_EQ(there.cache().mode(), Mode::kRead);
  there.cache().set_mode(Mode::kOff);
  EXPECT_EQ(there.cache().mode(), Mode::kOff);
}

}  // namespace
}  // namespace modcache::cache
