// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include <memory>
#include <optional>
#include <string>

#include "module/scripted/scripted.h"
#include "support/module_fixture.h"

namespace modcache::module {
namespace {

using cache::Mode;
using torch::jit::Module;

class ScriptedFastPathTest : public testing::ModuleTest {
 protected:
  ScriptedFastPathTest() {
    module_.register_buffer("weight", at::ones({3}));
    module_.define(
        "def forward(self, x):\n  return x * self.weight\n"
        "def pair(self, x):\n  return (x, 1)\n");
    held_.emplace(module_._ivalue());
  }

  void store(const std::string& scope, const std::string& method = "forward") const {
    const at::IValue object = module_._ivalue();
    const at::IValue input = input_;
    (void)lookup_or_run({object, input, scope, method, Want::kAny}, "a");
  }
  bool is_found(const std::string& scope, const std::string& method = "forward") const {
    const std::string key = "a";
    return held_->fast_path({scope, method, input_, key}).value.has_value();
  }

  Module module_{"__torch__.Encoder"};
  const at::Tensor input_ = at::full({3}, 2.0);
  std::optional<ScriptedModule> held_;
};

TEST_F(ScriptedFastPathTest, finds_what_a_call_kept_under_the_fingerprint_or_a_name) {
  EXPECT_FALSE(is_found(""));
  store("");
  EXPECT_TRUE(is_found(""));
  EXPECT_FALSE(is_found("encoder@1"));
  store("encoder@1");
  EXPECT_TRUE(is_found("encoder@1"));
}

TEST_F(ScriptedFastPathTest, finds_nothing_once_the_weights_are_others) {
  store("");
  module_.attr("weight").toTensor().mul_(2);
  EXPECT_FALSE(is_found(""));
}

TEST_F(ScriptedFastPathTest, finds_nothing_of_a_module_that_requires_grad) {
  store("encoder@1");
  module_.attr("weight").toTensor().requires_grad_();
  EXPECT_FALSE(is_found("encoder@1"));
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(is_found("encoder@1"));
}

TEST_F(ScriptedFastPathTest, finds_nothing_of_a_method_that_is_not_there_or_gives_no_tensor) {
  store("encoder@1", "pair");
  EXPECT_FALSE(is_found("encoder@1", "pair"));
  EXPECT_FALSE(is_found("encoder@1", "encode"));
}

TEST_F(ScriptedFastPathTest, finds_nothing_under_a_mode_that_always_runs) {
  store("encoder@1");
  set_mode(Mode::kVerify);
  EXPECT_FALSE(is_found("encoder@1"));
}

TEST_F(ScriptedFastPathTest, keeps_no_module_alive_and_finds_nothing_without_it) {
  store("encoder@1");
  auto freed = std::make_unique<Module>("__torch__.Freed");
  freed->define("def forward(self, x):\n  return x\n");
  const ScriptedModule held(freed->_ivalue());
  EXPECT_NE(held.object(), nullptr);
  freed.reset();
  EXPECT_EQ(held.object(), nullptr);
  const std::string scope = "encoder@1";
  const std::string method = "forward";
  const std::string key = "a";
  EXPECT_FALSE(held.fast_path({scope, method, input_, key}).value.has_value());
}

TEST_F(ScriptedFastPathTest, takes_no_other_value) {
  EXPECT_THROW(ScriptedModule(at::IValue(1)), c10::Error);
}

}  // namespace
}  // namespace modcache::module
