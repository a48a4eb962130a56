// SPDX-License-Identifier: Apache-2.0
//
// Calls of TorchScript modules that wait for another thread's run: scripted.h.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/jit/api/module.h>

#include <chrono>
#include <string>
#include <thread>

#include "cache/cache.h"
#include "module/scripted.h"
#include "support/temporary_directory.h"
#include "tensor/input.h"
#include "tensor/stored_format.h"

namespace modcache::module {
namespace {

using at::IValue;
using cache::Cache;

TEST(ScriptedWaitTest, weights_that_change_meanwhile_are_not_stored_under_the_old_ones) {
  const testing::TemporaryDirectory directory;
  static const tensor::StoredFormat format;
  Cache::set_value_format(format);
  ASSERT_TRUE(Cache::instance().configure({{"dir", directory / "cache"}}).is_ok());
  Cache::instance().reset_stats();

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
  // Should it not wait by then, this shows nothing, but does not fail.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  module.attr("weight").toTensor().mul_(2);
  lead.give_up();
  waiting.join();

  EXPECT_EQ(found.item<float>(), 2);
  EXPECT_FALSE(session->contains(request));
  Cache::instance().close();
}

}  // namespace
}  // namespace modcache::module
