// SPDX-License-Identifier: Apache-2.0
//
// A TorchScript module with a parameter, a submodule and plain attributes, to be told from others.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <cstdint>
#include <sstream>
#include <string>

#include "module/identity/inventory.h"

namespace modcache::testing {

// x * weight + bias + n, with the code that the test likes.
struct ScriptedEncoder {
  std::string code = "def forward(self, x):\n  return x * self.weight + self.inner.bias + self.n\n";
  std::int64_t n = 3;
  at::Tensor weight = at::arange(1, 101, at::kFloat);
  at::Tensor bias = at::ones({100});

  torch::jit::Module make() const {
    torch::jit::Module inner("__torch__.Inner");
    inner.register_buffer("bias", bias.clone());
    inner.register_buffer("unread", at::zeros({2}));
    torch::jit::Module module("__torch__.Encoder");
    module.register_parameter("weight", weight.clone(), false);
    module.register_attribute("n", c10::IntType::get(), n);
    module.register_attribute("unread", c10::IntType::get(), std::int64_t{1});
    module.register_attribute("list", c10::ListType::ofInts(),
                              c10::List<std::int64_t>({std::int64_t{1}, std::int64_t{2}}));
    module.register_module("inner", inner);
    module.define(code);
    return module;
  }
};

inline torch::jit::Module saved_and_loaded(const torch::jit::Module& module) {
  std::stringstream file;
  module.save(file);
  return torch::jit::load(file);
}

inline module::ObjectPtr object_of(const torch::jit::Module& module) { return module._ivalue(); }

}  // namespace modcache::testing
