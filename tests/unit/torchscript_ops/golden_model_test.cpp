// SPDX-License-Identifier: Apache-2.0
//
// Models that other versions of modcache and of torch saved load, and hit in directories that those
// versions filled. tests/python/test_golden_model.py does the same for Python.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "support/operators.h"
#include "support/temporary_directory.h"

namespace modcache::testing {
namespace {

using Counters = std::map<std::string, std::int64_t>;

class GoldenModelTest : public ::testing::TestWithParam<const char*> {
 protected:
  GoldenModelTest() {
    const std::string golden = std::string(MODCACHE_GOLDEN_DIRECTORY "/") + GetParam();
    std::filesystem::copy(golden + "/cache", copy(), std::filesystem::copy_options::recursive);
    configure({{"dir", copy()}});
    call_operator("reset_stats", {});
    model_ = torch::jit::load(golden + "/model.pt");
  }
  ~GoldenModelTest() override { configure({{"dir", directory_ / "left"}}); }

  std::string copy() const { return directory_ / "cache"; }

  TemporaryDirectory directory_;
  torch::jit::Module model_;
};

TEST_P(GoldenModelTest, every_call_hits_and_gives_the_bits_of_then) {
  const auto results = model_.get_method("calls")({}).toGenericDict();
  EXPECT_EQ(counters(), (Counters{{"hits_disk", 15}}));
  const auto expected = model_.attr("expected").toGenericDict();
  ASSERT_EQ(results.size(), expected.size());
  for (const auto& item : expected) {
    const at::Tensor result = results.at(item.key()).toTensor();
    EXPECT_EQ(result.scalar_type(), item.value().toTensor().scalar_type()) << item.key();
    EXPECT_TRUE(at::equal(result, item.value().toTensor())) << item.key();
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, GoldenModelTest,
                         ::testing::Values("model-0.1.0", "model-0.2.0-libtorch-1.13"),
                         [](const auto& version) {
                           std::string name = version.param;
                           for (char& c : name) {
                             if (c == '-' || c == '.') c = '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace modcache::testing
