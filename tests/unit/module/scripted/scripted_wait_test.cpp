// SPDX-License-Identifier: Apache-2.0
//
// Calls of TorchScript modules that wait for another thread's run: scripted.h.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/jit/api/module.h>

#include <chrono>
#include <string>
#include <thread>

#include "module/scripted/scripted.h"
#include "support/module_fixture.h"

namespace modcache::module {
namespace {

using at::IValue;
using cache::Cache;

using ScriptedWaitTest = testing::ModuleTest;

TEST_F(ScriptedWaitTest, weights_that_change_meanwhile_are_not_stored_under_the_old_ones) {
  torch::jit::Module module("__torch__.Encoder");
  module.register_buffer("weight", at::ones({1}));
  module.define("def forward(self, x):\n  return x * self.weight\n");
  const std::string old_scope = modcache::module::fingerprint(module._ivalue(), "forward");
  auto session = Cache::instance().session();
  const auto context = cache::make_context(
      {"", old_scope, "forward", cache::Form::kWhole, "", tensor::arithmetic_state()});
  const cache::Request request{context, "k", {}};
  cache::SingleFlight::Lead lead;
  ASSERT_EQ(session->lookup(request, /*may_write=*/true, lead), nullptr);

  at::Tensor found;
  std::thread waiting([&] {
    const IValue object = module._ivalue();
    const std::string scope;
    const std::string method = "forward";
    found = lookup_or_run({object, at::ones({1}), scope, method, Want::kTensor}, "k").toTensor();
  });
  // If the other thread does not wait by then, the test shows nothing, but does not fail.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  module.attr("weight").toTensor().mul_(2);
  lead.give_up();
  waiting.join();

  EXPECT_EQ(found.item<float>(), 2);
  EXPECT_FALSE(session->contains(request));
}

}  // namespace
}  // namespace modcache::module
