// SPDX-License-Identifier: Apache-2.0
//
// Keys that several threads miss at once, through a Cache.
#include <gmock/gmock.h>

#include <atomic>
#include <future>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cache/cache.h"
#include "support/cache_fixture.h"
#include "support/eventually.h"
#include "support/remote_machines.h"

namespace modcache::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::run_options;
using testing::text_of;

class InFlightTest : public testing::CacheTest {
 protected:
  Found find(const Keys& keys) { return here_.cache().lookup(keys, run_options()); }
};

TEST_F(InFlightTest, a_lookup_whose_caller_runs_nothing_leads_nothing) {
  const Found found = here_.cache().lookup(here_.keys("key"), testing::lookup_options());
  EXPECT_FALSE(found.lead.is_held());
  EXPECT_THAT(found.led, IsEmpty());
}

TEST_F(InFlightTest, a_lookup_leads_the_missing_rows_that_no_other_thread_runs) {
  here_.store_rows({{"b", "2"}});
  Found other = find(here_.rows({"c"}));
  EXPECT_THAT(other.led, ElementsAre(0u));
  const Keys rows = here_.rows({"a", "b", "c"});
  Found found = find(rows);
  EXPECT_THAT(found.missing(), ElementsAre(0u, 2u));
  EXPECT_THAT(found.led, ElementsAre(0u));
  EXPECT_THAT(found.awaited, ElementsAre(2u));
  EXPECT_FALSE(here_.cache().wait_for(rows.only(found.awaited)).look_again) << "not while it leads";
  other.lead.stored();
  other.lead.give_up();
  found.lead.give_up();
  EXPECT_TRUE(here_.cache().wait_for(rows.only(found.awaited)).look_again);
  EXPECT_FALSE(here_.cache().wait_for(rows.only({})).look_again);
}

// The lookup has passed memory and directory when the run ends. Without a second look it would run
// the row again.
TEST(InFlightServerTest, a_row_whose_run_ends_during_the_lookup_is_found) {
  const testing::TemporaryDirectory directory;
  const auto server = testing::ValueServer::make();
  testing::Machine machine(server, directory.path());
  Cache& cache = machine.cache();
  const Keys rows = machine.rows({"a", "b"});
  Found running = cache.lookup(machine.rows({"a"}), run_options());
  std::atomic<bool> is_done{false};
  server->before_each([&](testing::ServerCall call) {
    if (call != testing::ServerCall::kGet || is_done.exchange(true)) return;
    machine.store_rows({{"a", "1"}});
    running.lead.stored();
    running.lead.give_up();
  });
  const Found found = cache.lookup(rows, run_options());
  EXPECT_EQ(text_of(found), "1");
  EXPECT_THAT(found.missing(), ElementsAre(1u));
  EXPECT_THAT(found.led, ElementsAre(1u));
  EXPECT_THAT(found.awaited, IsEmpty());
}

TEST(InFlightServerTest, a_conflict_counts_once_though_a_run_ends_during_the_lookup) {
  const testing::TemporaryDirectory directory;
  const auto server = testing::ValueServer::make();
  testing::Machine machine(server, directory.path());
  machine.store_rows({{"a", "1"}}, "of another shape");
  Found running = machine.cache().lookup(machine.rows({"c"}), run_options());
  server->before_each([&](testing::ServerCall call) {
    if (call != testing::ServerCall::kGet || !running.lead.is_held()) return;
    running.lead.stored();
    running.lead.give_up();
  });
  const Found found =
      machine.cache().lookup(machine.rows({"a", "b"}, "of this shape"), run_options());
  EXPECT_THAT(found.led, ElementsAre(0u, 1u));
  EXPECT_EQ(machine.stat("key_conflicts"), 1);
}

TEST_F(InFlightTest, threads_that_miss_one_key_at_once_run_it_once) {
  std::atomic<int> runs{0};
  const auto call = [&] {
    const Keys keys = here_.keys("key");
    Found found = find(keys);
    while (!found.is_found(0) && found.led.empty()) {
      (void)here_.cache().wait_for(keys.only(found.awaited));
      found = find(keys);
    }
    if (!found.is_found(0)) {
      ++runs;
      here_.store("key", "text");
      found.lead.stored();
      return;
    }
    EXPECT_EQ(text_of(found), "text");
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) threads.emplace_back(call);
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(runs, 1);
}

// Overlapping batches in many threads: every row is run once, and nobody waits for ever.
TEST_F(InFlightTest, overlapping_batches_run_each_row_once) {
  constexpr int kThreads = 4;
  constexpr int kKeys = 60;
  std::vector<std::string> names;
  for (int i = 0; i < kKeys; ++i) names.push_back("key " + std::to_string(i));
  std::atomic<int> runs{0};
  const auto work = [&](int thread) {
    for (int begin = 0; begin < kKeys; begin += 5) {
      std::vector<std::string_view> batch;
      for (int i = 0; i < 15; ++i) batch.push_back(names[(begin + 7 * thread + i) % kKeys]);
      const Keys rows = here_.rows(batch);
      while (true) {
        Found found = find(rows);
        if (!found.has_missing()) break;
        std::vector<std::pair<std::string_view, std::string>> texts;
        for (const std::size_t i : found.led) texts.emplace_back(rows.keys[i], rows.keys[i]);
        runs += static_cast<int>(texts.size());
        here_.store_rows(texts);
        if (!texts.empty()) found.lead.stored();
        found.lead.give_up();
        (void)here_.cache().wait_for(rows.only(found.awaited));
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
