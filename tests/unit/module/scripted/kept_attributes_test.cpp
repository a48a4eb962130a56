// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include "module/scripted/scripted.h"

namespace modcache::module {
namespace {

using torch::jit::Module;

TEST(KeptAttributesTest, puts_back_what_became_another_value) {
  Module inner("__torch__.KeptInner");
  const at::Tensor table = at::ones({3});
  inner.register_buffer("table", table);
  inner.register_attribute("longest", c10::IntType::get(), 3);
  Module outer("__torch__.KeptOuter");
  outer.register_module("inner", inner);
  const KeptAttributes kept(outer._ivalue());
  inner.setattr("longest", 7);
  inner.setattr("table", at::ones({7}));
  kept.restore();
  EXPECT_EQ(inner.attr("longest").toInt(), 3);
  EXPECT_TRUE(inner.attr("table").toTensor().is_same(table));
}

TEST(KeptAttributesTest, does_not_undo_what_was_done_in_place) {
  Module module("__torch__.KeptInPlace");
  module.register_buffer("table", at::zeros({2}));
  const KeptAttributes kept(module._ivalue());
  module.attr("table").toTensor().fill_(5);
  kept.restore();
  EXPECT_EQ(module.attr("table").toTensor()[0].item().toInt(), 5);
}

}  // namespace
}  // namespace modcache::module
