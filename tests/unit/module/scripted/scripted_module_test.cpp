// SPDX-License-Identifier: Apache-2.0
//
// Which calls of a TorchScript module find an entry, and ScriptedModule.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include <memory>
#include <string>

#include "module/scripted/scripted.h"
#include "support/module_fixture.h"

namespace modcache::module {
namespace {

using torch::jit::Module;

class ScriptedModuleTest : public testing::ModuleTest {
 protected:
  ScriptedModuleTest() {
    module_.register_buffer("weight", at::ones({3}));
    module_.define("def forward(self, x):\n  return x * self.weight\n");
  }

  // Whether the call was a hit.
  bool call(const std::string& scope) const {
    const std::int64_t hits = stat("hits_memory");
    const std::string method = "forward";
    const at::IValue object = module_._ivalue();
    (void)lookup_or_run({object, input_, scope, method, Want::kAny}, CallKeys::whole("a"));
    return stat("hits_memory") > hits;
  }

  Module module_{"__torch__.Encoder"};
  const at::IValue input_ = at::full({3}, 2.0);
};

TEST_F(ScriptedModuleTest, finds_entries_under_its_fingerprint_or_a_name) {
  EXPECT_FALSE(call(""));
  EXPECT_TRUE(call(""));
  EXPECT_FALSE(call("encoder@1"));
  EXPECT_TRUE(call("encoder@1"));
}

TEST_F(ScriptedModuleTest, finds_nothing_once_the_weights_are_others) {
  EXPECT_FALSE(call(""));
  module_.attr("weight").toTensor().mul_(2);
  EXPECT_FALSE(call(""));
}

TEST_F(ScriptedModuleTest, runs_while_it_requires_grad) {
  EXPECT_FALSE(call("encoder@1"));
  module_.attr("weight").toTensor().requires_grad_();
  EXPECT_FALSE(call("encoder@1"));
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(call("encoder@1"));
}

TEST_F(ScriptedModuleTest, is_held_without_being_kept_alive) {
  auto freed = std::make_unique<Module>("__torch__.Freed");
  freed->define("def forward(self, x):\n  return x\n");
  const ScriptedModule held(freed->_ivalue());
  EXPECT_NE(held.object(), nullptr);
  EXPECT_TRUE(held.has_method("forward"));
  EXPECT_FALSE(held.has_method("encode"));
  freed.reset();
  EXPECT_EQ(held.object(), nullptr);
  EXPECT_FALSE(held.has_method("forward"));
}

TEST_F(ScriptedModuleTest, is_no_other_value) {
  EXPECT_THROW(ScriptedModule(at::IValue(1)), c10::Error);
}

}  // namespace
}  // namespace modcache::module
