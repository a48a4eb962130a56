// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include <string>

#include "module/lowered/lowered.h"
#include "module/lowered/recipe.h"
#include "module/scripted/scripted.h"
#include "support/module_fixture.h"

namespace modcache::module {
namespace {

using at::IValue;
using torch::jit::Module;

class LoweredIdentityTest : public testing::ModuleTest {
 protected:
  LoweredIdentityTest() {
    module_.register_parameter("weight", at::ones({2}).requires_grad_(), /*is_buffer=*/false);
    module_.register_attribute("scale", c10::FloatType::get(), 2.0);
    module_.define("def forward(self, x):\n  return x * self.weight * self.scale\n");
    const Source source = read_source(module_._ivalue(), "forward");
    const Inventory inventory(module_._ivalue(), source, TensorWatch::Hashing::kContents, nullptr);
    recipe_ = Recipe::of(source, inventory).value().text();
  }

  IValue attributes() const {
    return c10::ivalue::Tuple::create(module_.attr("scale"), module_.attr("weight"));
  }
  std::string lowered() const { return identify(recipe_, attributes(), true).fingerprint; }
  std::string scripted() const { return fingerprint(module_._ivalue(), "forward"); }

  Module module_{"__torch__.Encoder"};
  std::string recipe_;
};

TEST_F(LoweredIdentityTest, the_fingerprint_is_that_of_the_module) {
  EXPECT_EQ(lowered(), scripted());
  const at::NoGradGuard no_grad;
  module_.attr("weight").toTensor().add_(1);
  EXPECT_EQ(lowered(), scripted());
  module_.setattr("scale", 3.0);
  EXPECT_EQ(lowered(), scripted());
}

TEST_F(LoweredIdentityTest, tensors_that_require_grad) {
  EXPECT_EQ(identify(recipe_, attributes(), false).requiring_grad, 1);
  EXPECT_NE(identify(recipe_, attributes(), false).grad_pattern, 0);
  module_.attr("weight").toTensor().set_requires_grad(false);
  EXPECT_EQ(identify(recipe_, attributes(), false).grad_pattern, 0);
  EXPECT_EQ(identify(recipe_, attributes(), false).fingerprint, "");
}

TEST_F(LoweredIdentityTest, a_distrusted_module_is_hashed_anew) {
  const std::string before = lowered();
  auto* const data = static_cast<float*>(module_.attr("weight").toTensor().data_ptr());
  distrust(before);
  data[1] = 7;  // leaves no trace
  EXPECT_NE(lowered(), before);
  EXPECT_EQ(lowered(), refresh_fingerprint(module_._ivalue()));
}

TEST_F(LoweredIdentityTest, a_recipe_of_another_version_gives_no_fingerprint_and_is_logged) {
  EXPECT_EQ(identify("modcache recipe 9\n", attributes(), true).fingerprint, "");
  EXPECT_EQ(stat("errors"), 1);
  EXPECT_EQ(log_.about("a recipe in a lowered model has another format").size(), 1u);
}

TEST_F(LoweredIdentityTest, the_last_one_looked_at_is_known_by_its_fingerprint) {
  const std::string last = lowered();
  EXPECT_NE(last_identified(last), nullptr);
  EXPECT_EQ(last_identified("another"), nullptr);
}

TEST_F(LoweredIdentityTest, the_tensors_are_those_in_the_values) {
  const auto tensors = tensors_of(attributes());
  ASSERT_EQ(tensors.size(), 1u);
  EXPECT_TRUE(tensors[0].is_same(module_.attr("weight").toTensor()));
}

TEST_F(LoweredIdentityTest, the_state_changes_with_every_write) {
  const auto before = state_of(attributes());
  EXPECT_EQ(state_of(attributes()), before);
  {
    const at::NoGradGuard no_grad;
    module_.attr("weight").toTensor().add_(0);
  }
  const auto written = state_of(attributes());
  EXPECT_NE(written, before);
  module_.setattr("scale", 3.0);
  EXPECT_NE(state_of(attributes()), written);
}

TEST_F(LoweredIdentityTest, the_state_of_inference_tensors_is_their_contents) {
  const c10::InferenceMode inference;
  const at::Tensor tensor = at::ones({2});
  const IValue attributes = c10::ivalue::Tuple::create(tensor);
  const auto before = state_of(attributes);
  EXPECT_EQ(state_of(attributes), before);
  tensor.add_(1);
  EXPECT_NE(state_of(attributes), before);
}

}  // namespace
}  // namespace modcache::module
