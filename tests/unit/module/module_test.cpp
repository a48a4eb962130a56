// SPDX-License-Identifier: Apache-2.0
//
// Source, inventory and identity in one file: torch's headers take most of a minute to compile.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "module/identity.h"
#include "module/inventory.h"
#include "module/source.h"
#include "module/tensor_watch.h"

namespace modcache::module {
namespace {

using ::testing::HasSubstr;
using torch::jit::Module;
using Depth = Inventory::Depth;
using Hashing = TensorWatch::Hashing;

// x * weight + bias + n, with the code that the test likes.
struct Encoder {
  std::string code = "def forward(self, x):\n  return x * self.weight + self.inner.bias + self.n\n";
  std::int64_t n = 3;
  at::Tensor weight = at::arange(1, 101, at::kFloat);
  at::Tensor bias = at::ones({100});

  Module make() const {
    Module inner("__torch__.Inner");
    inner.register_buffer("bias", bias.clone());
    inner.register_buffer("unread", at::zeros({2}));
    Module module("__torch__.Encoder");
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

Module saved_and_loaded(const Module& module) {
  std::stringstream file;
  module.save(file);
  return torch::jit::load(file);
}

ObjectPtr object(const Module& module) { return module._ivalue(); }
std::string source_of(const Module& module) {
  return read_source(object(module), "forward").digest.hex();
}
std::string fingerprint(const Module& module) {
  return Identity(object(module), "forward").fingerprint(object(module)).text;
}

// ----- source

TEST(SourceTest, is_the_same_before_saving_after_loading_and_after_loading_again) {
  const Module module = Encoder().make();
  const Module loaded = saved_and_loaded(module);
  EXPECT_EQ(source_of(loaded), source_of(module));
  EXPECT_EQ(source_of(saved_and_loaded(loaded)), source_of(module));
}

TEST(SourceTest, is_the_same_when_the_module_ran_and_when_its_class_is_compiled_again) {
  Module module = Encoder().make();
  const std::string before = source_of(module);
  (void)module.forward({at::ones({100})});
  EXPECT_EQ(source_of(module), before);
  EXPECT_EQ(source_of(Encoder().make()), before);
}

TEST(SourceTest, differs_when_the_code_or_a_constant_in_it_does) {
  std::set<std::string> digests;
  const std::vector<std::string> bodies{
      "return x * self.weight",     "return x + self.weight",       "return x * self.weight + 1",
      "return x * self.weight + 2", "return x * self.weight + 1.0", "return self.weight * x"};
  for (const std::string& body : bodies) {
    Encoder encoder;
    encoder.code = "def forward(self, x):\n  " + body + "\n";
    digests.insert(source_of(encoder.make()));
  }
  EXPECT_EQ(digests.size(), bodies.size());
}

TEST(SourceTest, takes_in_the_methods_that_are_called_and_no_others) {
  const auto with = [](const std::string& called, const std::string& other) {
    Encoder encoder;
    encoder.code = "def called(self, x):\n  return x + " + called +
                   "\ndef other(self, x):\n  return x + " + other +
                   "\ndef forward(self, x):\n  return self.called(x)\n";
    return source_of(encoder.make());
  };
  EXPECT_NE(with("1", "1"), with("2", "1"));
  EXPECT_EQ(with("1", "1"), with("1", "2"));
}

TEST(SourceTest, lists_what_the_code_reads_and_writes) {
  Encoder encoder;
  encoder.code = "def forward(self, x):\n  self.unread = 2\n  return x + self.n\n";
  const Module module = encoder.make();
  const Source source = read_source(object(module), "forward");
  const ReachedAttributes& reached = source.attributes.at(module.type());
  EXPECT_EQ(reached.read, std::set<std::string>{"n"});
  EXPECT_EQ(reached.written, std::set<std::string>{"unread"});
}

// ----- inventory

class InventoryTest : public ::testing::Test {
 protected:
  static Module make() {
    Encoder encoder;
    encoder.code =
        "def forward(self, x):\n"
        "  return x * self.weight + self.inner.bias + self.n + self.list[0]\n";
    return encoder.make();
  }
  std::string difference(Depth depth = Depth::kIdentity) const {
    const auto found = inventory_.compare(*object(module_), depth);
    return found.has_value() ? found->what : "none";
  }

  Module module_ = make();
  const Source source_ = read_source(object(module_), "forward");
  const Inventory inventory_{object(module_), source_, Hashing::kContents, nullptr};
};

TEST_F(InventoryTest, a_module_that_nobody_touched_is_the_same) {
  (void)module_.forward({at::ones({100})});
  EXPECT_EQ(difference(), "none");
  EXPECT_EQ(difference(Depth::kSamples), "none");
}

TEST_F(InventoryTest, finds_a_plain_value_that_changed_and_one_that_came_back) {
  module_.setattr("n", std::int64_t{4});
  EXPECT_THAT(difference(), HasSubstr("attribute 'n'"));
  module_.setattr("n", std::int64_t{3});
  EXPECT_EQ(difference(), "none");
}

TEST_F(InventoryTest, finds_a_replaced_tensor_and_an_in_place_write) {
  const at::Tensor weight = module_.attr("weight").toTensor();
  module_.setattr("weight", weight.clone());
  EXPECT_THAT(difference(), HasSubstr("'weight'"));
  module_.setattr("weight", weight);
  EXPECT_EQ(difference(), "none");
  weight.mul_(2);
  EXPECT_THAT(difference(), HasSubstr("'weight'"));
}

TEST_F(InventoryTest, finds_a_swapped_submodule_and_a_change_inside_one) {
  Module inner = module_.attr("inner").toModule();
  module_.setattr("inner", inner.deepcopy()._ivalue());
  EXPECT_THAT(difference(), HasSubstr("submodule 'inner'"));
  module_.setattr("inner", inner._ivalue());
  EXPECT_EQ(difference(), "none");
  inner.setattr("bias", at::zeros({100}));
  EXPECT_THAT(difference(), HasSubstr("'inner.bias'"));
}

TEST_F(InventoryTest, finds_a_change_inside_a_container) {
  auto list = module_.attr("list").toIntList();
  list.push_back(5);
  EXPECT_THAT(difference(), HasSubstr("attribute 'list'"));
}

TEST_F(InventoryTest, does_not_mind_what_the_method_does_not_read) {
  module_.setattr("unread", std::int64_t{2});
  module_.attr("inner").toModule().setattr("unread", at::ones({2}));
  EXPECT_EQ(difference(Depth::kSamples), "none");
  const Inventory again(object(module_), source_, Hashing::kContents, nullptr);
  EXPECT_EQ(again.digest(), inventory_.digest());
}

TEST_F(InventoryTest, another_module_with_equal_contents_differs_in_identity_and_not_in_digest) {
  const Module twin = module_.deepcopy();
  EXPECT_TRUE(inventory_.compare(*object(twin), Depth::kIdentity).has_value());
  const Inventory of_twin(object(twin), source_, Hashing::kContents, nullptr);
  EXPECT_EQ(of_twin.digest(), inventory_.digest());
}

TEST_F(InventoryTest, a_write_that_leaves_no_version_is_found_by_the_bytes) {
  module_.attr("weight").toTensor().variable_data().mul_(2);
  EXPECT_EQ(difference(), "none");
  const auto found = inventory_.compare(*object(module_), Depth::kSamples);
  ASSERT_TRUE(found.has_value());
  EXPECT_TRUE(found->versions_lie);
}

TEST_F(InventoryTest, knows_which_tensors_require_grad_now) {
  EXPECT_EQ(inventory_.requiring_grad(*object(module_))->pattern, 0u);
  module_.attr("weight").toTensor().requires_grad_(true);
  EXPECT_NE(inventory_.requiring_grad(*object(module_))->pattern, 0u);
  EXPECT_EQ(inventory_.requiring_grad(*object(module_))->count, 1);
}

// ----- identity

TEST(IdentityTest, is_the_same_after_loading_and_for_a_twin) {
  const Module module = Encoder().make();
  const std::string before = fingerprint(module);
  EXPECT_EQ(before.size(), 32u);
  EXPECT_EQ(fingerprint(saved_and_loaded(module)), before);
  EXPECT_EQ(fingerprint(module.deepcopy()), before);
  EXPECT_EQ(fingerprint(Encoder().make()), before);
}

TEST(IdentityTest, differs_with_weights_plain_values_and_code) {
  std::set<std::string> fingerprints{fingerprint(Encoder().make())};
  Encoder other_number;
  other_number.n = 4;
  fingerprints.insert(fingerprint(other_number.make()));
  Encoder other_weight;
  other_weight.weight[57] = -1;
  fingerprints.insert(fingerprint(other_weight.make()));
  Encoder other_bias;
  other_bias.bias[99] = 0;
  fingerprints.insert(fingerprint(other_bias.make()));
  Encoder other_code;
  other_code.code = "def forward(self, x):\n  return x - self.weight + self.inner.bias + self.n\n";
  fingerprints.insert(fingerprint(other_code.make()));
  EXPECT_EQ(fingerprints.size(), 5u);
}

TEST(IdentityTest, follows_the_weights_and_comes_back_with_them) {
  const Module module = Encoder().make();
  const ObjectPtr self = object(module);
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
  const Module module = Encoder().make();
  const ObjectPtr self = object(module);
  const auto identity = identity_of(self, "forward");
  EXPECT_EQ(identity_of(self, "forward"), identity);
  const std::string before = identity->fingerprint(self).text;
  module.attr("weight").toTensor().variable_data()[17] = -1;  // between the sampled places
  refresh_identities(self);
  EXPECT_NE(identity->fingerprint(self).text, before);
}

TEST(IdentityTest, remembers_under_which_pattern_the_result_carried_a_graph) {
  const Module module = Encoder().make();
  Identity identity(object(module), "forward");
  EXPECT_FALSE(identity.gave_grad(0));
  identity.note_gave_grad(7, true);
  EXPECT_TRUE(identity.gave_grad(7));
  EXPECT_FALSE(identity.gave_grad(8));
  identity.note_gave_grad(7, false);
  EXPECT_FALSE(identity.gave_grad(7));
}

}  // namespace
}  // namespace modcache::module
