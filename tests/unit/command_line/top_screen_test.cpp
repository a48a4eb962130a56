// SPDX-License-Identifier: Apache-2.0
#include "command_line/top_screen.h"

#include <gtest/gtest.h>

#include <string>

#include "command_line/terminal_text.h"
#include "command_line/units.h"

namespace modcache::command_line {
namespace {

using cache::Counter;

Counted counted(std::int64_t hits, std::int64_t misses, std::int64_t saved_us) {
  store::Counts counts{};
  counts[static_cast<std::size_t>(Counter::kHitsDisk)] = hits;
  counts[static_cast<std::size_t>(Counter::kMisses)] = misses;
  counts[static_cast<std::size_t>(Counter::kSavedUs)] = saved_us;
  Counted counted;
  counted.add(counts);
  return counted;
}

Activity busy() {
  Activity activity;
  activity.path = "/data/features/of/a/project/with/a/long/name/and/a/longer/path/than/fits";
  activity.mode = "on";
  activity.processes = 3;
  activity.since_us = 1'700'000'000'000'000;
  activity.disk_bytes = 15'000'000'000;
  activity.budget_bytes = 20'000'000'000;
  activity.seconds = 2;
  activity.now = counted(198, 2, 3'000'000);
  activity.total = counted(900, 100, 60'000'000);
  activity.looked_up = {1, 5, 200};
  activity.scopes = {
      {std::string(64, 'f'), "train.embed", counted(198, 2, 3'000'000), activity.total},
      {"\x1b[31mred", "", {}, counted(0, 1, 0)}};
  for (int i = 0; i < 40; ++i) activity.scopes.push_back({"s" + std::to_string(i), "c", {}, {}});
  return activity;
}

std::string text_of(const std::vector<std::string>& lines) { return joined(lines, "\n"); }

TEST(TopScreenTest, it_says_what_happens_now_and_what_happened_in_total) {
  const std::string screen = text_of(top_screen(busy(), 80, 24));
  for (const char* shown : {"99.0 % now", "90.0 % in total", "99 hits/s", "1.0 misses/s",
                            "1.50 s each second", "1 min in total", "15.0 GB of 20.0 GB", "mode on",
                            "3 processes", "train.embed", "q quits"}) {
    EXPECT_NE(screen.find(shown), std::string::npos) << shown << " in\n" << screen;
  }
}

TEST(TopScreenTest, it_fits_every_terminal) {
  Activity failed = busy();
  failed.failure = "the directory went away: " + std::string(200, 'x') + '\x1b';
  for (const Activity& activity : {busy(), failed, Activity{}}) {
    for (std::size_t columns = 1; columns < 200; columns += 7) {
      for (std::size_t rows = 1; rows < 40; ++rows) {
        const auto lines = top_screen(activity, columns, rows);
        ASSERT_LE(lines.size(), rows);
        for (const std::string& line : lines) {
          ASSERT_LE(columns_of(line), columns) << line;
          ASSERT_EQ(line.find('\x1b'), std::string::npos) << line;
        }
      }
    }
  }
}

TEST(TopScreenTest, a_small_terminal_has_what_matters_most) {
  const std::string screen = text_of(top_screen(busy(), 40, 10));
  for (const char* shown : {"99.0 % now", "99 hits/s", "train.embed", "HITS/S"}) {
    EXPECT_NE(screen.find(shown), std::string::npos) << shown << " in\n" << screen;
  }
}

TEST(TopScreenTest, where_nothing_happened_nothing_is_divided_by_zero) {
  const std::string screen = text_of(top_screen(Activity{}, 80, 24));
  EXPECT_NE(screen.find("- now   - in total"), std::string::npos) << screen;
  EXPECT_EQ(screen.find("nan"), std::string::npos) << screen;
}

TEST(TopScreenTest, lines_stand_below_their_title) {
  const std::string line = top_line(busy(), 1'700'000'000'000'000);
  const std::string title = top_line_title();
  EXPECT_EQ(columns_of(line), columns_of(title));
  EXPECT_EQ(line.find("99.0 %") + 6, title.find("HIT RATE") + 8);
  EXPECT_EQ(line.find("15.0 GB") + 7, title.find("DISK") + 4);
}

}  // namespace
}  // namespace modcache::command_line
