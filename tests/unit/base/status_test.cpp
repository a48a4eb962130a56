// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/bytes.h"
#include "base/result.h"

namespace modcache {
namespace {

Result<int> parse_digit(char digit) {
  if (digit < '0' || digit > '9') return Status::invalid_argument("not a digit");
  return digit - '0';
}

Status check_digit(char digit) {
  MODCACHE_RETURN_IF_ERROR(parse_digit(digit).status());
  return Status::ok();
}

TEST(StatusTest, is_ok_by_default_and_says_why_when_it_is_not) {
  EXPECT_TRUE(Status().is_ok());
  const Status failure = Status::no_space("full");
  EXPECT_FALSE(failure.is_ok());
  EXPECT_EQ(failure.code(), StatusCode::kNoSpace);
  EXPECT_EQ(failure.message(), "full");
}

TEST(StatusTest, is_copied_with_its_message) {
  const Status failure = Status::busy("locked");
  Status copy = failure;
  EXPECT_EQ(copy.message(), "locked");
  copy = Status::not_found();
  EXPECT_TRUE(copy.is_not_found());
  EXPECT_EQ(copy.message(), "");
  EXPECT_EQ(failure.message(), "locked");
}

TEST(StatusTest, tells_a_miss_from_a_failure) {
  EXPECT_TRUE(Status::not_found().is_not_found());
  EXPECT_FALSE(Status::io_error("x").is_not_found());
}

TEST(StatusTest, leaves_the_function_on_failure_only) {
  EXPECT_TRUE(check_digit('7').is_ok());
  EXPECT_EQ(check_digit('x').code(), StatusCode::kInvalidArgument);
}

TEST(ResultTest, holds_a_value_or_a_failure) {
  EXPECT_EQ(parse_digit('7').value(), 7);
  EXPECT_TRUE(parse_digit('7').status().is_ok());
  EXPECT_EQ(parse_digit('x').status().message(), "not a digit");
}

TEST(ResultTest, gives_away_what_can_only_be_moved) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(3);
  const std::unique_ptr<int> taken = std::move(result).value();
  EXPECT_EQ(*taken, 3);
}

TEST(SharedBytesTest, outlive_what_made_them) {
  SharedBytes copy;
  {
    const SharedBytes bytes = share_bytes("some bytes that are too many to lie in the string");
    copy = bytes;
  }
  EXPECT_EQ(copy.view(), "some bytes that are too many to lie in the string");
}

}  // namespace
}  // namespace modcache
