// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/jit/api/module.h>

#include <string>

#include "module/scripted/scripted.h"
#include "support/module_fixture.h"

namespace modcache::module {
namespace {

using ::testing::HasSubstr;

class ScriptedDryRunTest : public testing::ModuleTest {
 protected:
  ScriptedDryRunTest() {
    module_.register_parameter("weight", at::ones({3}), /*is_buffer=*/false);
    module_.define("def forward(self, x):\n  return x * self.weight\n");
  }
  void run() const {
    const at::IValue object = module_._ivalue();
    const std::string method = "forward";
    (void)lookup_or_run({object, input_, scope_, method}, CallKeys::whole("a"));
  }
  ScriptedDryRun dry_run() const {
    return scripted_dry_run(module_._ivalue(), "forward", input_, tensor::Per::kCall);
  }

  torch::jit::Module module_{"__torch__.Encoder"};
  const at::IValue input_ = at::ones({3});
  const std::string scope_ = "encoder@1";
};

TEST_F(ScriptedDryRunTest, of_a_module_without_grad_says_nothing) {
  const ScriptedDryRun before = dry_run();
  EXPECT_EQ(before.params_grad_pattern, 0u);
  EXPECT_EQ(before.requiring_grad, 0);
  EXPECT_FALSE(before.gave_grad);
  EXPECT_EQ(before.refused_for, "");
}

TEST_F(ScriptedDryRunTest, says_why_the_last_result_was_not_kept) {
  module_.attr("weight").toTensor().requires_grad_();
  EXPECT_EQ(dry_run().requiring_grad, 1);
  EXPECT_NE(dry_run().params_grad_pattern, 0u);
  EXPECT_FALSE(dry_run().gave_grad);
  run();
  EXPECT_TRUE(dry_run().gave_grad);
  EXPECT_EQ(dry_run().refused_for, "grad");
  EXPECT_THAT(dry_run().refusal, HasSubstr("requires grad"));
  EXPECT_EQ(dry_run().refused_scope, scope_);
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(dry_run().gave_grad) << "the next result will not";
  EXPECT_EQ(dry_run().requiring_grad, 0);
}

TEST_F(ScriptedDryRunTest, counts_and_stores_nothing) {
  const auto before = test_cache().stats();
  (void)dry_run();
  EXPECT_EQ(test_cache().stats(), before);
}

TEST_F(ScriptedDryRunTest, is_asked_of_a_module_that_has_the_method) {
  EXPECT_THROW((void)scripted_dry_run(module_._ivalue(), "encode", input_, tensor::Per::kCall),
               c10::Error);
  EXPECT_THROW((void)scripted_dry_run(at::IValue(1), "forward", input_, tensor::Per::kCall),
               c10::Error);
}

}  // namespace
}  // namespace modcache::module
