// SPDX-License-Identifier: Apache-2.0
#include "tensor/torch_version.h"

#include <gmock/gmock.h>

#include <optional>
#include <string>

namespace modcache::tensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Optional;
using ::testing::StartsWith;

TEST(TorchVersionTest, this_process_runs_the_torch_that_it_was_built_against) {
  const auto running = running_torch();
  if (!running.has_value()) GTEST_SKIP() << "this torch does not tell its version";
  EXPECT_THAT(std::string(kTorchVersion), StartsWith(*running + "."));
}

TEST(TorchVersionTest, any_patch_of_the_same_minor_version_will_do) {
  EXPECT_EQ(why_not_for_torch("2.13.0", "2.13"), std::nullopt);
  EXPECT_EQ(why_not_for_torch("2.14.1", "2.14"), std::nullopt);
}

TEST(TorchVersionTest, another_minor_version_is_refused_and_both_are_named) {
  const auto both = AllOf(HasSubstr("built for torch 2.13"), HasSubstr("has torch 2.15"));
  EXPECT_THAT(why_not_for_torch("2.13.0", "2.15"), Optional(both));
  EXPECT_NE(why_not_for_torch("2.1.0", "2.13"), std::nullopt);
}

TEST(TorchVersionTest, a_torch_that_does_not_tell_its_version_is_believed) {
  EXPECT_EQ(why_not_for_torch("2.1.0", std::nullopt), std::nullopt);
}

}  // namespace
}  // namespace modcache::tensor
