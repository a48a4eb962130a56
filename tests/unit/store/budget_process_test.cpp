// SPDX-License-Identifier: Apache-2.0
//
// One budget holds for a directory, no matter how many processes write to it and die.
// BUDGET_TEST_ROUNDS=100 writes that many times as much.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "store/directory/directory.h"
#include "support/child_process.h"
#include "support/store_fixture.h"

namespace modcache::store {
namespace {

using testing::ChildProcess;
using testing::get;
using testing::put;

constexpr std::uint64_t kBudget = 4 << 20;
constexpr std::uint64_t kSegment = kBudget / 16;
constexpr int kWriters = 4;
constexpr std::size_t kPayload = 8000;

int rounds() {
  const char* text = std::getenv("BUDGET_TEST_ROUNDS");
  return text == nullptr ? 10 : std::atoi(text);
}
// All writers together write so many times the budget.
int puts_of_each() { return static_cast<int>(rounds() * kBudget / kWriters / kPayload); }

std::string value_of(const std::string& key) {
  std::string value = key + ":";
  while (value.size() < kPayload) value += std::to_string(value.size() * key.size()) + key;
  return value;
}

StoreOptions options_of(const std::string& directory) {
  StoreOptions options;
  options.directory = directory;
  options.disk_budget_bytes = kBudget;
  options.patience_ms = 5000;
  options.make_policy = testing::admitting_policy;
  return options;
}

// Writes, and reads what others wrote: 1 when a value is wrong, 2 when something failed.
int write_and_read(const std::string& directory, int writer, const Context& context) {
  std::atomic<bool> has_failed{false};
  StoreOptions options = options_of(directory);
  options.on_write_error = [&](const Status&, std::int64_t) { has_failed = true; };
  auto store = Store::open(fs::posix_file_system(), options);
  if (!store.is_ok()) return 2;
  const int count = puts_of_each();
  for (int i = 0; i < count; ++i) {
    const std::string key = std::to_string(writer) + "-" + std::to_string(i);
    if (!put(*store.value(), context, key, value_of(key)).is_ok()) return 2;
    // Without this most puts would be refused, since writing lags behind.
    if (i % 20 == 0 && !store.value()->flush().is_ok()) return 2;
    const std::string other =
        std::to_string((writer + i) % kWriters) + "-" + std::to_string(i - i % 37);
    const std::string found = get(*store.value(), context, other);
    if (found != "<missing>" && found != value_of(other)) return 1;
  }
  if (!store.value()->flush().is_ok()) return 2;
  return has_failed ? 2 : 0;
}

class BudgetProcessTest : public testing::StoreTest {
 protected:
  std::uint64_t used_bytes() {
    return Directory(fs::posix_file_system(), directory_.path()).size_bytes().value();
  }
  // Returns how many entries are there. None may have another's value.
  int entries_that_are_right(Store& store) {
    int found = 0;
    for (int writer = 0; writer < kWriters; ++writer) {
      for (int i = 0; i < puts_of_each(); ++i) {
        const std::string key = std::to_string(writer) + "-" + std::to_string(i);
        const std::string value = get(store, context_, key);
        if (value == "<missing>") continue;
        EXPECT_EQ(value, value_of(key));
        ++found;
      }
    }
    return found;
  }
};

TEST_F(BudgetProcessTest, four_writers_stay_within_one_budget_and_find_no_wrong_value) {
  std::vector<std::unique_ptr<ChildProcess>> writers;
  for (int writer = 0; writer < kWriters; ++writer) {
    writers.push_back(std::make_unique<ChildProcess>(
        [&, writer] { return write_and_read(directory_.path(), writer, context_); }));
  }
  std::atomic<bool> is_done{false};
  std::atomic<std::uint64_t> most{0};
  std::atomic<int> samples{0};
  std::thread sampler([&] {
    while (!is_done) {
      most = std::max<std::uint64_t>(most, used_bytes());
      ++samples;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  for (auto& writer : writers) EXPECT_EQ(writer->wait(), 0);
  is_done = true;
  sampler.join();
  EXPECT_LE(most, kBudget + kWriters * kSegment) << samples << " samples";
  EXPECT_GT(most, kBudget / 4 * 3);
  auto store = testing::open_store(options_of(directory_.path()));
  const int found = entries_that_are_right(*store);
  EXPECT_GT(found, static_cast<int>(kBudget / kPayload / 2));
  EXPECT_EQ(store->totals().value().entries, found);
}

TEST_F(BudgetProcessTest, writers_that_are_killed_leave_what_the_next_one_takes_up) {
  for (int round = 0; round < 8; ++round) {
    ChildProcess writer([&] { return write_and_read(directory_.path(), 0, context_); });
    ChildProcess other([&] { return write_and_read(directory_.path(), 1, context_); });
    std::this_thread::sleep_for(std::chrono::milliseconds(100 + 60 * round));
    writer.kill();
    other.kill();
    (void)writer.wait();
    (void)other.wait();
    auto store = testing::open_store(options_of(directory_.path()));
    EXPECT_EQ(entries_that_are_right(*store), store->totals().value().entries) << round;
    ASSERT_TRUE(store->evict(kBudget / 2).is_ok());
    EXPECT_LE(used_bytes(), kBudget / 2);
    EXPECT_TRUE(
        Directory(fs::posix_file_system(), directory_.path()).retired_segments().value().empty());
    if (round % 2 == 0) continue;
    store = nullptr;
    std::filesystem::remove(directory_ / "index.sqlite");
    store = testing::open_store(options_of(directory_.path()));
    EXPECT_EQ(entries_that_are_right(*store), store->totals().value().entries) << round;
  }
}

}  // namespace
}  // namespace modcache::store
