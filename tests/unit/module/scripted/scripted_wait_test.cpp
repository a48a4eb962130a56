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

using ScriptedWaitTest = testing::ModuleTest;

TEST_F(ScriptedWaitTest, weights_that_change_meanwhile_are_not_stored_under_the_old_ones) {
  torch::jit::Module module("__torch__.Encoder");
  module.register_buffer("weight", at::ones({1}));
  module.define("def forward(self, x):\n  return x * self.weight\n");
  const std::string old_scope = modcache::module::fingerprint(module._ivalue(), "forward");
  cache::Cache& cache = test_cache();
  const auto context = cache::make_context(
      {"", old_scope, "forward", cache::Form::kWhole, "", tensor::arithmetic_state()});
  cache::Keys keys(context, "k");
  keys.configuration = cache.configuration();
  cache::LookupOptions options;
  options.may_write = true;
  options.will_run = true;
  cache::Found found_first = cache.lookup(keys, options);
  ASSERT_TRUE(found_first.lead.is_held());

  at::Tensor found;
  std::thread waiting([&] {
    const IValue object = module._ivalue();
    const std::string scope;
    const std::string method = "forward";
    found =
        lookup_or_run({object, at::ones({1}), scope, method, Want::kTensor}, CallKeys::whole("k"))
            .toTensor();
  });
  // If the other thread does not wait by then, the test shows nothing, but does not fail.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  module.attr("weight").toTensor().mul_(2);
  found_first.lead.give_up();
  waiting.join();

  EXPECT_EQ(found.item<float>(), 2);
  EXPECT_FALSE(cache.contains(keys));
}

}  // namespace
}  // namespace modcache::module
