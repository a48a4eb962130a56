// SPDX-License-Identifier: Apache-2.0
//
// The look-ups that answer plain hits alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/session.h"
#include "support/cache_fixture.h"
#include "support/damage.h"
#include "support/text_value.h"

namespace modcache::cache {
namespace {

using testing::Process;
using testing::text_entry;
using testing::text_of;

using Keys = std::vector<std::string_view>;

class SessionHitsTest : public testing::CacheTest {
 protected:
  std::string found_on_disk(const std::string& key, const std::string& signature = "",
                            bool is_wanted = true) {
    const auto wanted =
        is_wanted ? [](std::string_view header) { return header == testing::TextValue::kHeader; }
                  : [](std::string_view) { return false; };
    return text_of(
        here_.cache().session()->find_on_disk(Process::request(key, signature), true, wanted));
  }
  void store_rows(Process& process, const Keys& keys, const std::string& signature = "") {
    std::vector<EntryPtr> entries;
    for (const std::string_view key : keys) {
      entries.push_back(text_entry("text of " + std::string(key), signature, 5));
    }
    process.cache().session()->store_all(context_, keys, entries);
  }
  std::optional<BatchFound> find(const Keys& keys, std::string_view signature = "") {
    return here_.cache().session()->find_hits({context_, keys, signature}, true);
  }
  void expect_nothing_counted() {
    for (const char* const counter :
         {"hits_memory", "hits_disk", "saved_us", "key_conflicts", "errors"}) {
      EXPECT_EQ(here_.stat(counter), 0) << counter;
    }
  }

  const ContextPtr context_ = [] {
    ContextParts parts;
    parts.scope = "scope";
    parts.method = "forward";
    parts.form = Form::kRow;
    return make_context(parts);
  }();
};

TEST_F(SessionHitsTest, find_in_memory_finds_only_what_is_in_memory_and_counts_only_that) {
  const auto found_in_memory = [&](const std::string& key, const std::string& signature = "") {
    return text_of(here_.cache().session()->find_in_memory(Process::request(key, signature), true,
                                                           [](const Entry&) { return true; }));
  };
  Process(dir_).store("on disk", "text");
  here_.store("key", "text", "float32[2]", 9);
  EXPECT_EQ(found_in_memory("key", "float32[2]"), "text");
  EXPECT_EQ(found_in_memory("key", "float32[3]"), "<missing>");
  EXPECT_EQ(found_in_memory("on disk"), "<missing>");
  EXPECT_EQ(found_in_memory("absent"), "<missing>");
  EXPECT_EQ(here_.stat("hits_memory"), 1);
  EXPECT_EQ(here_.stat("saved_us"), 9);
  EXPECT_EQ(here_.stat("key_conflicts"), 0);
  EXPECT_EQ(here_.stat("hits_disk"), 0);
}

TEST_F(SessionHitsTest, find_in_memory_leaves_alone_what_is_not_wanted) {
  here_.store("key", "text");
  const auto entry = here_.cache().session()->find_in_memory(Process::request("key"), true,
                                                             [](const Entry&) { return false; });
  EXPECT_EQ(entry, nullptr);
  EXPECT_EQ(here_.stat("hits_memory"), 0);
}

TEST_F(SessionHitsTest, find_in_memory_sees_a_clear_by_another_process) {
  here_.store("key", "text");
  here_.cache().flush();
  Process(dir_).cache().clear({}, Cache::Tier::kAll);
  const auto entry = here_.cache().session()->find_in_memory(Process::request("key"), true,
                                                             [](const Entry&) { return true; });
  EXPECT_EQ(entry, nullptr);
}

TEST_F(SessionHitsTest, find_on_disk_brings_what_it_finds_into_memory) {
  {
    Process writer(dir_);
    writer.store("key", "text", "float32[2]", 9);
  }
  EXPECT_EQ(found_on_disk("key", "float32[2]"), "text");
  EXPECT_EQ(here_.stat("hits_disk"), 1);
  EXPECT_EQ(here_.stat("saved_us"), 9);
  const auto again = here_.cache().session()->find_in_memory(
      Process::request("key", "float32[2]"), true, [](const Entry&) { return true; });
  EXPECT_EQ(text_of(again), "text");
}

TEST_F(SessionHitsTest, find_on_disk_counts_nothing_where_it_finds_nothing) {
  {
    Process writer(dir_);
    writer.store("key", "text", "float32[2]", 9);
  }
  EXPECT_EQ(found_on_disk("key", "float32[3]"), "<missing>") << "another input";
  EXPECT_EQ(found_on_disk("absent"), "<missing>");
  EXPECT_EQ(found_on_disk("key", "float32[2]", /*is_wanted=*/false), "<missing>");
  expect_nothing_counted();
}

TEST_F(SessionHitsTest, find_on_disk_drops_a_damaged_entry_and_counts_it_once) {
  {
    Process writer(dir_);
    writer.store("key", "the text of the key");
  }
  const std::string segment = testing::segment_files(dir_).front();
  testing::flip_bit(segment, testing::file_bytes(segment).find("the text of the key"));
  EXPECT_EQ(found_on_disk("key"), "<missing>");
  EXPECT_EQ(here_.stat("corrupt"), 1);
  EXPECT_EQ(here_.stat("hits_disk"), 0);
  EXPECT_EQ(here_.stat("entries_disk"), 0);
}

TEST_F(SessionHitsTest, find_hits_finds_a_whole_batch_in_all_tiers_and_counts_each_tier) {
  {
    Process writer(dir_);
    store_rows(writer, {"a", "b"});
  }
  store_rows(here_, {"c"});
  auto found = find({"a", "b", "c"});
  ASSERT_TRUE(found.has_value());
  EXPECT_TRUE(found->is_row(0));
  EXPECT_TRUE(found->is_row(1));
  EXPECT_EQ(text_of(found->in_memory(2)), "text of c");
  EXPECT_EQ(here_.stat("hits_disk"), 2);
  EXPECT_EQ(here_.stat("hits_memory"), 1);
  EXPECT_EQ(here_.stat("saved_us"), 15);
  here_.cache().session()->take_back_all({context_, Keys{"a", "b", "c"}, ""}, *found);
  EXPECT_EQ(found->missing().size(), 3U);
  expect_nothing_counted();
}

TEST_F(SessionHitsTest, find_hits_counts_nothing_where_one_row_is_missing_or_of_another_input) {
  {
    Process writer(dir_);
    store_rows(writer, {"a"}, "float32[2]");
  }
  store_rows(here_, {"b"}, "float32[2]");
  EXPECT_FALSE(find({"a", "b", "absent"}, "float32[2]").has_value());
  EXPECT_FALSE(find({"a"}, "float32[3]").has_value());
  EXPECT_FALSE(find({"b"}, "float32[3]").has_value());
  expect_nothing_counted();
}

}  // namespace
}  // namespace modcache::cache
