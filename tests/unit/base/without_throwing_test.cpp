// SPDX-License-Identifier: Apache-2.0
#include "base/without_throwing.h"

#include <gtest/gtest.h>

#include <new>
#include <system_error>

#include "base/result.h"

namespace modcache {
namespace {

TEST(WithoutThrowingTest, gives_what_the_work_returns) {
  EXPECT_EQ(without_throwing([] { return Result<int>(5); }).value(), 5);
  EXPECT_EQ(without_throwing([] { return Status::busy("locked"); }).code(), StatusCode::kBusy);
}

TEST(WithoutThrowingTest, what_was_not_to_be_had_is_no_space) {
  const auto no_memory = []() -> Status { throw std::bad_alloc(); };
  EXPECT_EQ(without_throwing(no_memory).code(), StatusCode::kNoSpace);
  const auto no_thread = []() -> Result<int> {
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
  };
  EXPECT_EQ(without_throwing(no_thread).status().code(), StatusCode::kNoSpace);
}

}  // namespace
}  // namespace modcache
