// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "tensor/torch_version.h"

namespace modcache::tensor {
namespace {

TEST(ErrorTextTest, is_what_the_exception_says) {
  EXPECT_EQ(text_of(std::runtime_error("no room")), "no room");
}

TEST(ErrorTextTest, leaves_out_the_stack_that_an_error_of_torch_carries) {
  try {
    TORCH_CHECK(false, "wrong size");
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()), "wrong size");
    EXPECT_EQ(text_of(error), "wrong size");
  }
}

}  // namespace
}  // namespace modcache::tensor
