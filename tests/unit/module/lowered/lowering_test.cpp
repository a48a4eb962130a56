// SPDX-License-Identifier: Apache-2.0
//
// That lowered calls do what others do is shown in tests/python/test_freeze.py, since the operators
// are outside this room.
#include "module/lowered/lowering.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include <string>

namespace modcache::module {
namespace {

using torch::jit::Module;

TEST(LoweringTest, a_model_without_calls_stays_as_it_is) {
  Module module("__torch__.Model");
  module.define("def forward(self, x):\n  return x + 1\n");
  const std::string before = module.get_method("forward").graph()->toString();
  lower(module);
  EXPECT_EQ(module.get_method("forward").graph()->toString(), before);
}

TEST(FreezeTest, a_model_in_training_mode_is_refused) {
  Module model("__torch__.Model");
  model.register_attribute("training", c10::BoolType::get(), true);
  model.define("def forward(self, x):\n  return x + 1\n");
  EXPECT_THROW((void)module::freeze(model, {}, true), c10::Error);
  model.eval();
  Module frozen = module::freeze(model, {}, true);
  EXPECT_EQ(frozen.forward({at::ones({})}).toTensor().item<float>(), 2);
}

}  // namespace
}  // namespace modcache::module
