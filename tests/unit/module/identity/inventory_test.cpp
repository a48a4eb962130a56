// SPDX-License-Identifier: Apache-2.0
#include "module/identity/inventory.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <torch/csrc/jit/api/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/scripted_encoder.h"

namespace modcache::module {
namespace {

using ::testing::HasSubstr;
using testing::object_of;
using testing::ScriptedEncoder;
using torch::jit::Module;
using Depth = Inventory::Depth;
using Hashing = TensorWatch::Hashing;

class InventoryTest : public ::testing::Test {
 protected:
  static Module make() {
    ScriptedEncoder encoder;
    encoder.code =
        "def forward(self, x):\n"
        "  return x * self.weight + self.inner.bias + self.n + self.list[0]\n";
    return encoder.make();
  }
  std::string difference(Depth depth = Depth::kIdentity) const {
    const auto found = inventory_.compare(*object_of(module_), depth);
    return found.has_value() ? *found : "none";
  }

  Module module_ = make();
  const Source source_ = read_source(object_of(module_), "forward");
  const Inventory inventory_{object_of(module_), source_, Hashing::kContents, nullptr};
};

TEST_F(InventoryTest, a_module_that_nobody_touched_is_the_same) {
  (void)module_.forward({at::ones({100})});
  EXPECT_EQ(difference(), "none");
  EXPECT_EQ(difference(Depth::kSamples), "none");
}

TEST_F(InventoryTest, finds_a_plain_value_that_changed_and_one_that_came_back) {
  module_.setattr("n", std::int64_t{4});
  EXPECT_THAT(difference(), HasSubstr("attribute 'n'"));
  module_.setattr("n", std::int64_t{3});
  EXPECT_EQ(difference(), "none");
}

TEST_F(InventoryTest, finds_a_replaced_tensor_and_an_in_place_write) {
  const at::Tensor weight = module_.attr("weight").toTensor();
  module_.setattr("weight", weight.clone());
  EXPECT_THAT(difference(), HasSubstr("'weight'"));
  module_.setattr("weight", weight);
  EXPECT_EQ(difference(), "none");
  weight.mul_(2);
  EXPECT_THAT(difference(), HasSubstr("'weight'"));
}

TEST_F(InventoryTest, finds_a_swapped_submodule_and_a_change_inside_one) {
  Module inner = module_.attr("inner").toModule();
  module_.setattr("inner", inner.deepcopy()._ivalue());
  EXPECT_THAT(difference(), HasSubstr("submodule 'inner'"));
  module_.setattr("inner", inner._ivalue());
  EXPECT_EQ(difference(), "none");
  inner.setattr("bias", at::zeros({100}));
  EXPECT_THAT(difference(), HasSubstr("'inner.bias'"));
}

TEST_F(InventoryTest, finds_a_change_inside_a_container) {
  auto list = module_.attr("list").toIntList();
  list.push_back(5);
  EXPECT_THAT(difference(), HasSubstr("attribute 'list'"));
}

TEST_F(InventoryTest, does_not_mind_what_the_method_does_not_read) {
  module_.setattr("unread", std::int64_t{2});
  module_.attr("inner").toModule().setattr("unread", at::ones({2}));
  EXPECT_EQ(difference(Depth::kSamples), "none");
  const Inventory again(object_of(module_), source_, Hashing::kContents, nullptr);
  EXPECT_EQ(again.digest(), inventory_.digest());
}

TEST_F(InventoryTest, another_module_with_equal_contents_differs_in_identity_and_not_in_digest) {
  const Module twin = module_.deepcopy();
  EXPECT_TRUE(inventory_.compare(*object_of(twin), Depth::kIdentity).has_value());
  const Inventory of_twin(object_of(twin), source_, Hashing::kContents, nullptr);
  EXPECT_EQ(of_twin.digest(), inventory_.digest());
}

TEST_F(InventoryTest, a_write_that_leaves_no_version_is_found_by_the_bytes) {
  module_.attr("weight").toTensor().variable_data().mul_(2);
  EXPECT_EQ(difference(), "none");
  EXPECT_TRUE(inventory_.compare(*object_of(module_), Depth::kSamples).has_value());
}

TEST_F(InventoryTest, knows_which_tensors_require_grad_now) {
  EXPECT_EQ(inventory_.requiring_grad(*object_of(module_))->pattern(), 0u);
  module_.attr("weight").toTensor().requires_grad_(true);
  EXPECT_NE(inventory_.requiring_grad(*object_of(module_))->pattern(), 0u);
  EXPECT_EQ(inventory_.requiring_grad(*object_of(module_))->count, 1);
}

TEST_F(InventoryTest, lists_what_is_read_or_written_by_path_and_digests_what_is_read) {
  std::vector<std::string> paths;
  for (const auto& attribute : inventory_.attributes()) paths.push_back(attribute.path);
  EXPECT_THAT(paths, ::testing::ElementsAre("inner", "inner.bias", "list", "n", "weight"));
  const auto before = inventory_.attribute_digests();
  module_.setattr("n", std::int64_t{4});
  const Inventory other(object_of(module_), source_, Hashing::kContents, nullptr);
  const auto after = other.attribute_digests();
  ASSERT_EQ(before.size(), 5u);
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(before[i].is_tensor, before[i].path == "weight" || before[i].path == "inner.bias");
    EXPECT_EQ(before[i].digest == after[i].digest, before[i].path != "n") << before[i].path;
  }
  EXPECT_NE(other.digest(), inventory_.digest());
}

TEST_F(InventoryTest, names_an_attribute_that_cannot_be_hashed) {
  module_.setattr("weight", at::ones({100}).to_sparse());
  const Inventory sparse(object_of(module_), source_, Hashing::kContents, nullptr);
  EXPECT_FALSE(sparse.is_hashed());
  EXPECT_THAT(sparse.why_not_hashable(), HasSubstr("attribute 'weight' is"));
}

TEST(InventoryOfInferenceTensorsTest, finds_a_write_that_no_version_counts) {
  const c10::InferenceMode inference;
  Module module("__torch__.Encoder");
  module.register_buffer("weight", at::ones({4}));
  module.define("def forward(self, x):\n  return x * self.weight\n");
  const Source source = read_source(object_of(module), "forward");
  const Inventory before(object_of(module), source, Hashing::kUncounted, nullptr);
  EXPECT_TRUE(before.has_uncounted());
  EXPECT_EQ(before.changed_uncounted(), std::nullopt);
  module.attr("weight").toTensor().mul_(2);
  EXPECT_EQ(before.changed_uncounted(), "tensor 'weight'");
}

}  // namespace
}  // namespace modcache::module
