// SPDX-License-Identifier: Apache-2.0
//
// A TorchScript file that multiplies, with a parameter that requires grad.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include <cstdio>
#include <string>

#include "module/file/model_file.h"
#include "support/module_fixture.h"

namespace modcache::testing {

class ModelFileTest : public ModuleTest {
 protected:
  ModelFileTest() { save(2); }

  void save(double factor) const {
    torch::jit::Module module("__torch__.Scale");
    module.register_parameter("factor", at::full({}, factor).requires_grad_(), false);
    module.define(
        "def forward(self, x):\n  return x * self.factor\n"
        "def negated(self, x):\n  return -x * self.factor\n");
    module.save(path_);
  }
  module::ModelFilePtr file() const { return module::model_file(path_).value(); }
  bool is_loaded() const { return !file()->loaded_on(at::kCPU).isNone(); }
  // What another process would begin with: nothing of this version is known.
  void forget_file() const {
    const std::string aside = path_ + ".aside";
    ASSERT_EQ(::rename(path_.c_str(), aside.c_str()), 0);
    ASSERT_EQ(::rename(aside.c_str(), path_.c_str()), 0);  // has another time of change
  }

  const std::string path_ = directory_ / "scale.pt";
};

}  // namespace modcache::testing
