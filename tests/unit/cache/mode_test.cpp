// SPDX-License-Identifier: Apache-2.0
#include "cache/mode.h"

#include <gmock/gmock.h>

#include <array>
#include <stdexcept>
#include <string>
#include <thread>

namespace modcache::cache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::array<Mode, 5> kModes{Mode::kOff, Mode::kRead, Mode::kOn, Mode::kRefresh,
                                     Mode::kVerify};

TEST(ModeTest, every_mode_is_read_back_by_its_name_and_its_number) {
  for (const Mode mode : kModes) {
    const auto parsed = parse_mode(mode_name(mode));
    ASSERT_TRUE(parsed.is_ok());
    EXPECT_EQ(parsed.value(), mode);
    EXPECT_EQ(mode_from_number(static_cast<int>(mode)), mode);
  }
  for (const int number : {-1, 2, 4, 7, 8, 256, 259}) {
    EXPECT_EQ(mode_from_number(number), std::nullopt) << number;
  }
}

TEST(ModeTest, another_name_is_refused_with_the_valid_ones) {
  for (const char* given : {"", "On", "refreshing", "on "}) {
    const Status status = parse_mode(given).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("'" + std::string(given) + "'"),
                                        HasSubstr("one of: off, read, on, refresh, verify")));
  }
}

TEST(ModeTest, each_permits_what_its_row_of_the_table_says) {
  struct Permits {
    Mode mode;
    bool reads, writes, always;
  };
  for (const Permits& row :
       {Permits{Mode::kOff, false, false, false}, Permits{Mode::kRead, true, false, false},
        Permits{Mode::kOn, true, true, false}, Permits{Mode::kRefresh, false, true, true},
        Permits{Mode::kVerify, true, false, true}}) {
    EXPECT_EQ(may_read(row.mode), row.reads) << mode_name(row.mode);
    EXPECT_EQ(may_write(row.mode), row.writes) << mode_name(row.mode);
    EXPECT_EQ(always_runs(row.mode), row.always) << mode_name(row.mode);
  }
}

TEST(ModeTest, levels_combine_as_this_table_says) {
  const std::array<std::array<const char*, 5>, 5> table{{
      // off     read      on         refresh    verify
      {"off", "off", "off", "off", "off"},           // off
      {"off", "read", "read", "off", "verify"},      // read
      {"off", "read", "on", "refresh", "verify"},    // on
      {"off", "off", "refresh", "refresh", "off"},   // refresh
      {"off", "verify", "verify", "off", "verify"},  // verify
  }};
  for (std::size_t a = 0; a < kModes.size(); ++a) {
    for (std::size_t b = 0; b < kModes.size(); ++b) {
      EXPECT_EQ(mode_name(combine(kModes[a], kModes[b])), table[a][b])
          << mode_name(kModes[a]) << " and " << mode_name(kModes[b]);
    }
  }
}

TEST(ModeTest, the_order_in_which_levels_combine_does_not_matter) {
  for (const Mode a : kModes) {
    for (const Mode b : kModes) {
      for (const Mode c : kModes) {
        EXPECT_EQ(combine(combine(a, b), c), combine(a, combine(b, c)));
      }
    }
  }
}

TEST(ModeGuardTest, guards_nest_and_each_takes_back_what_it_did) {
  EXPECT_EQ(thread_mode(), Mode::kOn);
  {
    const ModeGuard outer(Mode::kVerify);
    EXPECT_EQ(thread_mode(), Mode::kVerify);
    {
      const ModeGuard wider(Mode::kOn);
      EXPECT_EQ(thread_mode(), Mode::kVerify);
      const ModeGuard inner(Mode::kRefresh);
      EXPECT_EQ(thread_mode(), Mode::kOff);
      const ModeGuard innermost(Mode::kOn);
      EXPECT_EQ(thread_mode(), Mode::kOff);
    }
    EXPECT_EQ(thread_mode(), Mode::kVerify);
  }
  EXPECT_EQ(thread_mode(), Mode::kOn);
}

TEST(ModeGuardTest, what_tasks_leave_combines_with_guards_and_replaces_itself) {
  const ModeGuard guard(Mode::kRead);
  follow_modes({Mode::kVerify, Mode::kOn});
  EXPECT_EQ(thread_mode(), Mode::kVerify);
  {
    const ModeGuard inner(Mode::kRefresh);
    EXPECT_EQ(thread_mode(), Mode::kOff);
    follow_modes({});
    EXPECT_EQ(thread_mode(), Mode::kOff);
  }
  EXPECT_EQ(thread_mode(), Mode::kRead);
}

TEST(ModeGuardTest, an_exception_ends_it_too) {
  try {
    const ModeGuard guard(Mode::kOff);
    throw std::runtime_error("from the module");
  } catch (const std::runtime_error&) {
    EXPECT_EQ(thread_mode(), Mode::kOn);
  }
}

TEST(ModeGuardTest, other_threads_see_nothing_of_it) {
  const ModeGuard guard(Mode::kOff);
  Mode seen_before = Mode::kOff;
  Mode seen_within = Mode::kOff;
  std::thread([&] {
    seen_before = thread_mode();
    const ModeGuard other(Mode::kRead);
    seen_within = thread_mode();
  }).join();
  EXPECT_EQ(seen_before, Mode::kOn);
  EXPECT_EQ(seen_within, Mode::kRead);
  EXPECT_EQ(thread_mode(), Mode::kOff);
}

}  // namespace
}  // namespace modcache::cache
