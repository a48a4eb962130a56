// SPDX-License-Identifier: Apache-2.0
//
// A model whose TorchScript calls the operator, compiled here by the torch of this build.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/frontend/resolver.h>
#include <torch/csrc/jit/frontend/sugared_value.h>
#include <torch/csrc/jit/serialization/import.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <sstream>
#include <string>

#include "support/operators.h"
#include "support/stranger.h"
#include "support/temporary_directory.h"

namespace modcache::testing {
namespace {

using Counters = std::map<std::string, std::int64_t>;
using torch::jit::Module;

// `cache` is the namespace of the operators; Python says torch.ops.cache.
struct OperatorResolver : torch::jit::NativeResolver {
  std::shared_ptr<torch::jit::SugaredValue> resolveValue(
      const std::string& name, torch::jit::GraphFunction& function,
      const torch::jit::SourceRange& place) override {
    if (name == "cache") return std::make_shared<torch::jit::BuiltinModule>("cache");
    return NativeResolver::resolveValue(name, function, place);
  }
};

Module encoder() {
  Module encoder("__torch__.Encoder");
  encoder.register_buffer("weight", at::arange(6, at::kFloat).view({3, 2}));
  encoder.register_attribute("gain", c10::FloatType::get(), 0.5);
  encoder.define(
      "def forward(self, x):\n"
      "  h = torch.linear(x, self.weight)\n"
      "  for i in range(2):\n"
      "    if i < 1:\n"
      "      h = torch.layer_norm(h, [3]) * self.gain\n"
      "  return torch.softmax(h, -1)\n");
  return encoder;
}

Module model_of(const Module& encoder) {
  Module model("__torch__.Model");
  model.register_module("encoder", encoder);
  model.define(
      "def forward(self, x, key: str):\n"
      "  return cache.lookup_or_run(self.encoder, x, key)\n"
      "def rows(self, x, keys: List[str]):\n"
      "  return cache.lookup_or_run(self.encoder, x, keys)\n",
      std::make_shared<OperatorResolver>());
  return model;
}

Module reloaded(const Module& model) {
  std::stringstream file;
  model.save(file);
  return torch::jit::load(file);
}

std::string fingerprint(const Module& module) {
  return call_operator("fingerprint", {module._ivalue(), std::string("forward")}).toStringRef();
}

class ScriptedModelTest : public ::testing::Test {
 protected:
  ScriptedModelTest() {
    configure({{"dir", directory_ / "cache"}});
    call_operator("clear", {std::string(), std::string(), std::string("all")});
    call_operator("reset_stats", {});
  }
  ~ScriptedModelTest() override { configure({{"dir", directory_ / "left"}}); }

  TemporaryDirectory directory_;
};

TEST_F(ScriptedModelTest, it_misses_once_and_then_hits_also_when_loaded) {
  Module model = model_of(encoder());
  const at::Tensor x = at::ones({4, 2});
  const at::Tensor expected = encoder().forward({x}).toTensor();
  EXPECT_TRUE(at::equal(model.forward({x, std::string("k")}).toTensor(), expected));
  EXPECT_EQ(counters(), (Counters{{"misses", 1}, {"stored", 1}}));
  EXPECT_TRUE(at::equal(model.forward({x, std::string("k")}).toTensor(), expected));
  EXPECT_TRUE(at::equal(reloaded(model).forward({x, std::string("k")}).toTensor(), expected));
  EXPECT_EQ(counters(), (Counters{{"misses", 1}, {"stored", 1}, {"hits_memory", 2}}));
}

TEST_F(ScriptedModelTest, one_key_per_row_runs_missing_rows_only) {
  Module model = model_of(encoder());
  const at::Tensor x = at::randn({3, 2});
  const at::Tensor expected = encoder().forward({x}).toTensor();
  const c10::List<std::string> two({"a", "b"});
  const c10::List<std::string> three({"a", "b", "c"});
  (void)model.get_method("rows")({x.slice(0, 0, 2), two});
  EXPECT_TRUE(at::allclose(model.get_method("rows")({x, three}).toTensor(), expected));
  EXPECT_EQ(counters(), (Counters{{"misses", 3}, {"stored", 3}, {"hits_memory", 2}}));
}

TEST_F(ScriptedModelTest, another_input_under_the_same_key_is_noticed) {
  Module model = model_of(encoder());
  const at::Tensor x = at::randn({3, 2});
  const c10::List<std::string> keys({"a", "b", "c"});
  for (const at::Tensor& input : {x, x.clone().neg(), at::rand({3, 2})}) {
    const at::Tensor expected = encoder().forward({input}).toTensor();
    for (int repeat = 0; repeat < 2; ++repeat) {
      EXPECT_TRUE(at::allclose(model.get_method("rows")({input, keys}).toTensor(), expected));
      EXPECT_TRUE(at::allclose(model.forward({input, std::string("k")}).toTensor(), expected));
    }
  }
  EXPECT_EQ(counters(),
            (Counters{{"misses", 12}, {"stored", 12}, {"hits_memory", 12}, {"key_conflicts", 8}}));
}

// From the view of a host without Python; tests/python and tests/unit/store have the table of all
// files.
TEST_F(ScriptedModelTest, a_stranger_in_the_directory_changes_no_output_and_nobody_waits) {
  Module model = model_of(encoder());
  const at::Tensor x = at::ones({4, 2});
  const at::Tensor expected = encoder().forward({x}).toTensor();
  Stranger stranger;
  for (const char* file : {"control", "lock", "index.sqlite", "index.sqlite-shm"}) {
    for (const Thing thing : {Thing::kPipe, Thing::kLink, Thing::kDanglingLink, Thing::kHardLink}) {
      const std::string cache = directory_ / (std::string(file) + name_of(thing));
      configure({{"dir", cache}});
      (void)model.forward({x, std::string("k")});
      call_operator("flush", {});
      configure({{"dir", directory_ / "other"}});
      ASSERT_TRUE(stranger.put(thing, cache + '/' + file));
      configure({{"dir", cache}});
      const auto errors = counters()["errors"];
      const auto started = std::chrono::steady_clock::now();
      EXPECT_TRUE(at::equal(model.forward({x, cache}).toTensor(), expected));
      call_operator("flush", {});
      // Whoever opens a pipe and waits for its other end waits for ever.
      EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(10)) << cache;
      EXPECT_GT(counters()["errors"], errors) << cache;
      EXPECT_TRUE(stranger.is_untouched()) << cache;
    }
  }
}

// Builds against other versions of torch must get the same number, so that they share entries.
TEST_F(ScriptedModelTest, the_fingerprint_does_not_depend_on_the_version_of_torch) {
  EXPECT_EQ(fingerprint(encoder()), "6c80ccc9094ce5ab1ab5c43164fec8d8");
  EXPECT_EQ(fingerprint(encoder()), fingerprint(reloaded(encoder())));
}

}  // namespace
}  // namespace modcache::testing
