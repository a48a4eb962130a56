// SPDX-License-Identifier: Apache-2.0
#include "command_line/counted.h"

#include <gtest/gtest.h>

#include <limits>

namespace modcache::command_line {
namespace {

using cache::Counter;

store::CountedDay day(const char* scope, std::int32_t number, Counter counter, std::int64_t count) {
  store::CountedDay counted;
  counted.scope = scope;
  counted.day = number;
  counted.counts[static_cast<std::size_t>(counter)] = count;
  return counted;
}

TEST(CountedTest, it_adds_up_by_scope_and_by_day) {
  store::CounterTotals totals;
  totals.days = {day("a", 1, Counter::kHitsDisk, 3), day("a", 2, Counter::kHitsMemory, 4),
                 day("b", 2, Counter::kMisses, 5), day("", 2, Counter::kBypassedOff, 6)};
  const Counted all = sum_of(totals);
  EXPECT_EQ(all.hits(), 7);
  EXPECT_EQ(all.looked_up(), 12);
  EXPECT_EQ(all.bypassed(), 6);
  EXPECT_EQ(all.of("hits_disk"), 3);
  EXPECT_EQ(all.of("no such counter"), 0);
  EXPECT_EQ(sums_by_scope(totals)["a"].hits(), 7);
  EXPECT_EQ(sums_by_scope(totals).size(), 3U);
  EXPECT_EQ(sums_by_day(totals)[2].looked_up(), 9);
}

TEST(CountedTest, numbers_of_a_damaged_file_do_not_overflow) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  store::CounterTotals totals;
  totals.days = {day("a", 1, Counter::kHitsMemory, kMost), day("b", 1, Counter::kHitsDisk, kMost),
                 day("a", 1, Counter::kMisses, std::numeric_limits<std::int64_t>::min())};
  EXPECT_GT(sum_of(totals).looked_up(), 0);
  EXPECT_EQ(sum_of(totals).misses(), 0);
}

TEST(CountedTest, a_day_has_a_date) {
  EXPECT_EQ(day_text(20'000), "2024-10-04");
  EXPECT_EQ(day_text(std::numeric_limits<std::int32_t>::max()), "-");
  EXPECT_EQ(day_text(-5), "-");
}

}  // namespace
}  // namespace modcache::command_line
