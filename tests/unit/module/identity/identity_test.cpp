// SPDX-License-Identifier: Apache-2.0
#include "module/identity/identity.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include <set>
#include <string>

#include "support/scripted_encoder.h"

namespace modcache::module {
namespace {

using testing::object_of;
using testing::saved_and_loaded;
using testing::ScriptedEncoder;
using torch::jit::Module;

std::string fingerprint_now(const Module& module) {
  return Identity(object_of(module), "forward").fingerprint(object_of(module)).text;
}

TEST(IdentityTest, is_the_same_after_loading_and_for_a_twin) {
  const Module module = ScriptedEncoder().make();
  const std::string before = fingerprint_now(module);
  EXPECT_EQ(before.size(), 32u);
  EXPECT_EQ(fingerprint_now(saved_and_loaded(module)), before);
  EXPECT_EQ(fingerprint_now(module.deepcopy()), before);
  EXPECT_EQ(fingerprint_now(ScriptedEncoder().make()), before);
}

TEST(IdentityTest, differs_with_weights_plain_values_and_code) {
  std::set<std::string> fingerprints{fingerprint_now(ScriptedEncoder().make())};
  ScriptedEncoder other_number;
  other_number.n = 4;
  fingerprints.insert(fingerprint_now(other_number.make()));
  ScriptedEncoder other_weight;
  other_weight.weight[57] = -1;
  fingerprints.insert(fingerprint_now(other_weight.make()));
  ScriptedEncoder other_bias;
  other_bias.bias[99] = 0;
  fingerprints.insert(fingerprint_now(other_bias.make()));
  ScriptedEncoder other_code;
  other_code.code = "def forward(self, x):\n  return x - self.weight + self.inner.bias + self.n\n";
  fingerprints.insert(fingerprint_now(other_code.make()));
  EXPECT_EQ(fingerprints.size(), 5u);
}

TEST(IdentityTest, follows_the_weights_and_comes_back_with_them) {
  const Module module = ScriptedEncoder().make();
  const ObjectPtr self = object_of(module);
  Identity identity(self, "forward");
  const std::string before = identity.fingerprint(self).text;
  at::Tensor weight = module.attr("weight").toTensor();
  weight.mul_(2);
  EXPECT_NE(identity.fingerprint(self).text, before);
  weight.div_(2);
  EXPECT_EQ(identity.fingerprint(self).text, before);
  weight.variable_data().mul_(2);
  EXPECT_NE(identity.fingerprint(self).text, before);
}

TEST(IdentityTest, refresh_sees_what_versions_and_samples_cannot) {
  const Module module = ScriptedEncoder().make();
  const ObjectPtr self = object_of(module);
  const auto identity = identity_of(self, "forward");
  EXPECT_EQ(identity_of(self, "forward"), identity);
  const std::string before = identity->fingerprint(self).text;
  module.attr("weight").toTensor().variable_data()[17] = -1;  // between the sampled places
  refresh_identities(self);
  EXPECT_NE(identity->fingerprint(self).text, before);
}

TEST(IdentityTest, remembers_under_which_pattern_the_result_carried_a_graph) {
  const Module module = ScriptedEncoder().make();
  Identity identity(object_of(module), "forward");
  EXPECT_FALSE(identity.gave_grad(0));
  identity.note_gave_grad(7, true);
  EXPECT_TRUE(identity.gave_grad(7));
  EXPECT_FALSE(identity.gave_grad(8));
  identity.note_gave_grad(7, false);
  EXPECT_FALSE(identity.gave_grad(7));
}

}  // namespace
}  // namespace modcache::module
