// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include <string>

#include "module/scripted/scripted.h"
#include "support/temporary_directory.h"

namespace modcache::module {
namespace {

TEST(LoadScriptedTest, gives_a_module_in_which_nothing_requires_grad) {
  const testing::TemporaryDirectory directory;
  torch::jit::Module inner("__torch__.Inner");
  inner.register_parameter("weight", at::ones({2}).requires_grad_(), /*is_buffer=*/false);
  inner.register_parameter("buffer", at::ones({2}).requires_grad_(), /*is_buffer=*/true);
  inner.define("def forward(self, x):\n  return x * self.weight * self.buffer\n");
  torch::jit::Module outer("__torch__.Outer");
  outer.register_module("inner", inner);
  outer.define("def forward(self, x):\n  return self.inner.forward(x)\n");
  outer.save(directory / "outer.pt");
  torch::jit::Module loaded(load_without_grad(directory / "outer.pt", at::kCPU).toObject());
  const at::Tensor result = loaded.forward({at::ones({2})}).toTensor();
  EXPECT_FALSE(result.requires_grad());
  EXPECT_TRUE(at::equal(result, at::ones({2})));
}

TEST(LoadScriptedTest, throws_for_a_file_that_is_not_there) {
  EXPECT_THROW((void)load_without_grad("/nonexistent/model.pt", at::kCPU), std::exception);
}

}  // namespace
}  // namespace modcache::module
