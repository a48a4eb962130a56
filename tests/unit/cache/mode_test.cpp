// SPDX-License-Identifier: Apache-2.0
#include "cache/mode.h"

#include <gmock/gmock.h>

namespace modcache::cache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ModeTest, every_mode_is_read_back_by_its_name) {
  for (const Mode mode : {Mode::kOff, Mode::kRead, Mode::kOn}) {
    const auto parsed = parse_mode(mode_name(mode));
    ASSERT_TRUE(parsed.is_ok());
    EXPECT_EQ(parsed.value(), mode);
  }
}

TEST(ModeTest, another_name_is_refused_with_the_valid_ones) {
  for (const char* given : {"", "On", "refresh", "on "}) {
    const Status status = parse_mode(given).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("'" + std::string(given) + "'"),
                                        HasSubstr("one of: off, read, on")));
  }
}

TEST(ModeTest, off_permits_nothing_read_reading_and_on_both) {
  EXPECT_FALSE(may_read(Mode::kOff) || may_write(Mode::kOff));
  EXPECT_TRUE(may_read(Mode::kRead) && !may_write(Mode::kRead));
  EXPECT_TRUE(may_read(Mode::kOn) && may_write(Mode::kOn));
}

}  // namespace
}  // namespace modcache::cache
