// SPDX-License-Identifier: Apache-2.0
//
// A result whose run began before a clear of its scope is stored in no tier.
#include "cache/generations.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "cache/cache.h"
#include "support/cache_fixture.h"
#include "support/captured_log.h"
#include "support/remote_machines.h"

namespace modcache::cache {
namespace {

using testing::Machine;
using testing::Process;

TEST(ScopeGenerationsTest, a_clear_changes_the_number_of_its_scope_or_of_all) {
  Generations generations;
  const std::uint64_t a = generations.of("a");
  const std::uint64_t b = generations.of("b");
  generations.renew("a");
  EXPECT_NE(generations.of("a"), a);
  EXPECT_EQ(generations.of("b"), b);
  generations.renew("");
  EXPECT_NE(generations.of("b"), b);
}

class CacheGenerationTest : public testing::CacheTest {
 protected:
  static Generation begin(Process& process, std::string_view key = "key") {
    const Keys keys = process.keys(key);
    (void)process.cache().lookup(keys, testing::run_options());
    return process.cache().begin_run(keys, /*may_write=*/true);
  }
  static bool store(Process& process, const Generation& since, std::string_view key = "key") {
    StoreOptions options;
    options.since = &since;
    return process.store(key, "text", "", testing::kLongRunUs, options);
  }
  // Whether a result is stored whose run began before `act`. All tiers agree.
  bool is_stored_after(const std::function<void()>& act) {
    const Generation begun = begin(here_);
    act();
    const bool is_stored = store(here_, begun);
    EXPECT_EQ(here_.lookup("key"), is_stored ? "text" : "<missing>");
    EXPECT_EQ(here_.stat("entries_memory"), is_stored ? 1 : 0);
    here_.cache().flush();
    EXPECT_EQ(Process(dir_).lookup("key"), is_stored ? "text" : "<missing>");
    return is_stored;
  }
  void clear_here(const store::ClearFilter& filter, Cache::Tier tier = Cache::Tier::kAll) {
    (void)here_.cache().clear(filter, tier);
  }
  // As another process of the directory.
  void clear_elsewhere(const store::ClearFilter& filter) {
    (void)Process(dir_).cache().clear(filter, Cache::Tier::kAll);
  }
};

TEST_F(CacheGenerationTest, without_a_clear_the_result_is_stored) {
  EXPECT_TRUE(is_stored_after([] {}));
}

TEST_F(CacheGenerationTest, a_clear_of_all_prevents_storing) {
  EXPECT_FALSE(is_stored_after([&] { clear_here({}); }));
}

TEST_F(CacheGenerationTest, a_clear_of_the_scope_prevents_storing) {
  EXPECT_FALSE(is_stored_after([&] { clear_here({"scope", ""}); }));
}

TEST_F(CacheGenerationTest, a_clear_of_memory_prevents_storing) {
  EXPECT_FALSE(is_stored_after([&] { clear_here({}, Cache::Tier::kMemory); }));
}

TEST_F(CacheGenerationTest, a_clear_of_another_scope_does_not) {
  EXPECT_TRUE(is_stored_after([&] { clear_here({"other", ""}); }));
}

TEST_F(CacheGenerationTest, a_clear_by_age_does_not) {
  store::ClearFilter older;
  older.older_than_us = now_us();
  EXPECT_TRUE(is_stored_after([&] { clear_here(older); }));
}

TEST_F(CacheGenerationTest, a_clear_of_all_by_another_process_prevents_storing) {
  here_.store("other", "text");
  here_.cache().flush();
  EXPECT_FALSE(is_stored_after([&] {
    clear_elsewhere({});
    EXPECT_EQ(here_.lookup("other"), "<missing>");
  }));
}

// No sequence of the directory was taken before.
TEST_F(CacheGenerationTest, a_clear_by_another_process_prevents_storing_in_an_empty_directory) {
  EXPECT_FALSE(is_stored_after([&] { clear_elsewhere({}); }));
}

TEST_F(CacheGenerationTest, a_clear_of_the_scope_by_another_process_prevents_storing) {
  EXPECT_FALSE(is_stored_after([&] { clear_elsewhere({"scope", ""}); }));
}

TEST_F(CacheGenerationTest, a_clear_of_the_key_by_another_process_prevents_storing) {
  EXPECT_FALSE(is_stored_after([&] { clear_elsewhere({"scope", "ke"}); }));
}

TEST_F(CacheGenerationTest, a_clear_of_other_keys_by_another_process_does_not) {
  EXPECT_TRUE(is_stored_after([&] { clear_elsewhere({"scope", "other"}); }));
}

TEST_F(CacheGenerationTest, a_clear_of_another_scope_by_another_process_does_not) {
  EXPECT_TRUE(is_stored_after([&] { clear_elsewhere({"other", ""}); }));
}

TEST_F(CacheGenerationTest, a_clear_by_age_by_another_process_does_not) {
  store::ClearFilter older;
  older.older_than_us = now_us();
  EXPECT_TRUE(is_stored_after([&] { clear_elsewhere(older); }));
}

TEST_F(CacheGenerationTest, a_result_that_began_after_the_clear_is_stored) {
  clear_here({});
  EXPECT_TRUE(is_stored_after([] {}));
  clear_elsewhere({});
  EXPECT_TRUE(store(here_, begin(here_, "other"), "other"));
}

TEST_F(CacheGenerationTest, of_a_batch_only_the_cleared_rows_are_not_stored) {
  const Keys rows = here_.rows({"a", "ab", "b"});
  const Generation begun = here_.cache().begin_run(rows, /*may_write=*/true);
  clear_elsewhere({"scope", "a"});
  StoreOptions options;
  options.since = &begun;
  const EntryPtr entry = testing::text_entry("text");
  const EntryPtr entries[] = {entry, entry, entry};
  EXPECT_EQ(here_.cache().store(rows, entries, options), 1u);
  EXPECT_EQ(here_.stat("stored"), 1);
  EXPECT_EQ(here_.cache().lookup(rows, {}).missing(), (std::vector<std::size_t>{0, 1}));
}

TEST_F(CacheGenerationTest, without_a_directory_a_clear_prevents_storing) {
  ASSERT_TRUE(here_.configure({{"disk", "0"}}).is_ok());
  for (const char* const scope : {"", "scope", "other"}) {
    const Generation begun = begin(here_);
    clear_here({scope, ""});
    EXPECT_EQ(store(here_, begun), std::string_view(scope) == "other") << scope;
  }
  EXPECT_EQ(here_.lookup("key"), "text");
}

TEST_F(CacheGenerationTest, a_call_that_began_in_another_directory_is_not_stored) {
  const Generation begun = begin(here_);
  ASSERT_TRUE(here_.configure({{"dir", directory_ / "other"}}).is_ok());
  EXPECT_FALSE(store(here_, begun));
  EXPECT_EQ(here_.lookup("key"), "<missing>");
}

TEST_F(CacheGenerationTest, a_call_that_began_before_its_directory_was_replaced_is_not_stored) {
  const testing::CapturedLog quiet;
  here_.store("old", "text");
  const Generation begun = begin(here_);
  here_.cache().flush();
  std::filesystem::remove_all(dir_);
  Process there(dir_);
  there.store("new", "text");
  there.cache().flush();
  here_.cache().flush();  // looks at the files; the thread that writes would do so in a moment
  EXPECT_FALSE(store(here_, begun));
  EXPECT_EQ(here_.lookup("key"), "<missing>");
}

// ----- with a server

class CacheGenerationServerTest : public testing::RemoteMachinesTest {
 protected:
  // Begins a run on a, clears by the other machine, and stores the result of the run.
  void store_after_clear_by(Machine& other, Machine& a) {
    const Keys keys = a.keys("k");
    (void)a.cache().lookup(keys, testing::run_options());
    const Generation begun = a.cache().begin_run(keys, /*may_write=*/true);
    (void)other.cache().clear({}, Cache::Tier::kAll);
    StoreOptions options;
    options.since = &begun;
    a.Process::store("k", "text", "", testing::kLongRunUs, options);
    a.cache().flush();
  }
};

TEST_F(CacheGenerationServerTest, a_clear_prevents_storing_on_the_server) {
  const auto a = machine("a");
  a->share("earlier", "text");
  store_after_clear_by(*a, *a);
  EXPECT_EQ(a->lookup("k"), "<missing>");
  EXPECT_EQ(machine("c")->lookup("k"), "<missing>");
}

TEST_F(CacheGenerationServerTest, a_clear_by_another_process_of_the_directory_prevents_it) {
  const auto a = machine("a");
  a->share("earlier", "text");
  store_after_clear_by(*machine("a"), *a);
  EXPECT_EQ(a->lookup("k"), "<missing>");
  EXPECT_EQ(machine("c")->lookup("k"), "<missing>");
}

// Its clear does not reach the directory of the first machine.
TEST_F(CacheGenerationServerTest, a_clear_by_another_machine_prevents_it_on_the_server_alone) {
  const auto a = machine("a");
  a->share("earlier", "text");
  store_after_clear_by(*machine("b"), *a);
  EXPECT_EQ(a->lookup("k"), "text");
  EXPECT_EQ(machine("c")->lookup("k"), "<missing>");
}

}  // namespace
}  // namespace modcache::cache
