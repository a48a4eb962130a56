// SPDX-License-Identifier: Apache-2.0
#include "base/result.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

namespace modcache {
namespace {

TEST(ResultTest, is_a_value_or_the_status_that_says_why_there_is_none) {
  const Result<int> value(5);
  EXPECT_TRUE(value.is_ok());
  EXPECT_EQ(value.value(), 5);
  EXPECT_TRUE(value.status().is_ok());
  const Result<int> none(Status::io_error("gone"));
  EXPECT_FALSE(none.is_ok());
  EXPECT_EQ(none.status().message(), "gone");
}

TEST(ResultTest, tells_what_is_missing_from_what_failed) {
  EXPECT_TRUE(Result<int>(Status::not_found()).is_not_found());
  EXPECT_FALSE(Result<int>(Status::io_error("gone")).is_not_found());
  EXPECT_FALSE(Result<int>(5).is_not_found());
}

TEST(ResultTest, gives_its_value_away) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(7));
  const std::unique_ptr<int> taken = std::move(result).value();
  EXPECT_EQ(*taken, 7);
}

Result<int> twice(const Status& status, int* calls) {
  MODCACHE_RETURN_IF_ERROR(status);
  return ++*calls * 2;
}

TEST(ResultTest, a_failure_ends_the_function_that_meets_it) {
  int calls = 0;
  EXPECT_EQ(twice(Status::ok(), &calls).value(), 2);
  EXPECT_EQ(twice(Status::busy("locked"), &calls).status().code(), StatusCode::kBusy);
  EXPECT_EQ(calls, 1);
}

Result<std::unique_ptr<int>> doubled(Result<std::unique_ptr<int>> given) {
  MODCACHE_ASSIGN_OR_RETURN(auto number, std::move(given));
  MODCACHE_ASSIGN_OR_RETURN(const auto factor, (Result<int>(*number == 0 ? 0 : 2)));
  *number *= factor;
  return number;
}

TEST(ResultTest, is_assigned_or_its_failure_ends_the_function) {
  EXPECT_EQ(*doubled(std::make_unique<int>(7)).value(), 14);
  EXPECT_EQ(doubled(Status::busy("locked")).status().code(), StatusCode::kBusy);
}

}  // namespace
}  // namespace modcache
