// SPDX-License-Identifier: Apache-2.0
#include "module/watch/optimizer_steps.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace modcache::module {
namespace {

TEST(OptimizerStepsTest, are_told_apart_by_tensor_and_by_time) {
  const at::Tensor stepped = at::ones({1});
  const at::Tensor other = at::ones({1});
  const std::uint64_t before = optimizer_steps();
  note_optimizer_step({stepped});
  const std::uint64_t after = optimizer_steps();
  EXPECT_GT(after, before);
  EXPECT_TRUE(was_stepped_since(before, stepped.unsafeGetTensorImpl()));
  EXPECT_FALSE(was_stepped_since(before, other.unsafeGetTensorImpl()));
  EXPECT_FALSE(was_stepped_since(after, stepped.unsafeGetTensorImpl()));
}

}  // namespace
}  // namespace modcache::module
