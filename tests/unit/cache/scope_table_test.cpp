// SPDX-License-Identifier: Apache-2.0
#include "cache/scope_table.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace modcache::cache {
namespace {

struct Count {
  std::atomic<int> number{0};
};
using Table = ScopeTable<Count>;

TEST(ScopeTableTest, each_scope_has_numbers_of_its_own) {
  const auto table = std::make_unique<Table>();
  table->of("encoder@1").number = 3;
  EXPECT_EQ(table->of("encoder@2").number, 0);
  EXPECT_EQ(table->of("encoder@1").number, 3);
}

TEST(ScopeTableTest, more_scopes_than_there_is_room_for_share_some) {
  const auto table = std::make_unique<Table>();
  std::set<const Count*> states;
  for (int i = 0; i < 10'000; ++i) states.insert(&table->of("scope " + std::to_string(i)));
  EXPECT_LE(states.size(), Table::kSlots);
  EXPECT_GT(states.size(), Table::kSlots / 2);
}

TEST(ScopeTableTest, threads_that_meet_a_scope_together_find_one_state) {
  const auto table = std::make_unique<Table>();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) ++table->of("scope " + std::to_string(i)).number;
    });
  }
  for (auto& thread : threads) thread.join();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(table->of("scope " + std::to_string(i)).number, 4) << i;
}

TEST(ScopeTableTest, what_is_forgotten_makes_room_for_others) {
  const auto table = std::make_unique<Table>();
  for (std::size_t i = 0; i < 100 * Table::kSlots; ++i) {
    const std::string scope = "scope " + std::to_string(i);
    if (Count* const own = table->own_state(scope, true)) own->number = 1;
  }
  EXPECT_EQ(table->own_state("another", true), nullptr) << "the table is full";
  table->forget([](Count& count) { count.number = 0; });
  EXPECT_EQ(table->own_state("another", false), nullptr);
  ASSERT_NE(table->own_state("another", true), nullptr);
  EXPECT_EQ(table->own_state("another", false)->number, 0);
}

}  // namespace
}  // namespace modcache::cache
