// SPDX-License-Identifier: Apache-2.0
#include "module/code/source.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/jit/api/module.h>

#include <set>
#include <string>
#include <vector>

#include "support/scripted_encoder.h"

namespace modcache::module {
namespace {

using ::testing::ElementsAre;
using testing::object_of;
using ::testing::Pair;
using testing::saved_and_loaded;
using testing::ScriptedEncoder;
using torch::jit::Module;

std::string source_of(const Module& module) {
  return read_source(object_of(module), "forward").digest.hex();
}

TEST(SourceTest, is_the_same_before_saving_after_loading_and_after_loading_again) {
  const Module module = ScriptedEncoder().make();
  const Module loaded = saved_and_loaded(module);
  EXPECT_EQ(source_of(loaded), source_of(module));
  EXPECT_EQ(source_of(saved_and_loaded(loaded)), source_of(module));
}

TEST(SourceTest, is_the_same_when_the_module_ran_and_when_its_class_is_compiled_again) {
  Module module = ScriptedEncoder().make();
  const std::string before = source_of(module);
  (void)module.forward({at::ones({100})});
  EXPECT_EQ(source_of(module), before);
  EXPECT_EQ(source_of(ScriptedEncoder().make()), before);
}

TEST(SourceTest, differs_when_the_code_or_a_constant_in_it_does) {
  std::set<std::string> digests;
  const std::vector<std::string> bodies{
      "return x * self.weight",     "return x + self.weight",       "return x * self.weight + 1",
      "return x * self.weight + 2", "return x * self.weight + 1.0", "return self.weight * x"};
  for (const std::string& body : bodies) {
    ScriptedEncoder encoder;
    encoder.code = "def forward(self, x):\n  " + body + "\n";
    digests.insert(source_of(encoder.make()));
  }
  EXPECT_EQ(digests.size(), bodies.size());
}

TEST(SourceTest, takes_in_the_methods_that_are_called_and_no_others) {
  const auto with = [](const std::string& called, const std::string& other) {
    ScriptedEncoder encoder;
    encoder.code = "def called(self, x):\n  return x + " + called +
                   "\ndef other(self, x):\n  return x + " + other +
                   "\ndef forward(self, x):\n  return self.called(x)\n";
    return source_of(encoder.make());
  };
  EXPECT_NE(with("1", "1"), with("2", "1"));
  EXPECT_EQ(with("1", "1"), with("1", "2"));
}

TEST(SourceTest, lists_what_the_code_reads_and_writes) {
  ScriptedEncoder encoder;
  encoder.code = "def forward(self, x):\n  self.unread = 2\n  return x + self.n\n";
  const Module module = encoder.make();
  const Source source = read_source(object_of(module), "forward");
  const ReachedAttributes& reached = source.attributes.at(module.type());
  EXPECT_EQ(reached.read, std::set<std::string>{"n"});
  EXPECT_EQ(reached.written, std::set<std::string>{"unread"});
}

TEST(SourceTest, has_a_digest_for_each_function_by_its_name) {
  ScriptedEncoder encoder;
  encoder.code =
      "def called(self, x):\n  return x + 1\n"
      "def forward(self, x):\n  return self.called(x)\n";
  const Source source = read_source(object_of(encoder.make()), "forward");
  EXPECT_THAT(source.functions, ElementsAre(Pair("__torch__.Encoder.called", ::testing::_),
                                            Pair("__torch__.Encoder.forward", ::testing::_)));
  encoder.code.replace(encoder.code.find("x + 1"), 5, "x + 2");
  const Source other = read_source(object_of(encoder.make()), "forward");
  EXPECT_NE(other.functions.at("__torch__.Encoder.called"),
            source.functions.at("__torch__.Encoder.called"));
  EXPECT_EQ(other.functions.at("__torch__.Encoder.forward"),
            source.functions.at("__torch__.Encoder.forward"));
}

TEST(SourceTest, numbers_the_classes_whose_methods_it_reaches) {
  Module inner("__torch__.Inner");
  inner.define("def forward(self, x):\n  return x\n");
  Module outer("__torch__.Outer");
  outer.register_module("inner", inner);
  outer.define("def forward(self, x):\n  return self.inner.forward(x)\n");
  const Source source = read_source(object_of(outer), "forward");
  EXPECT_EQ(source.classes.at(outer.type()), 0u);
  EXPECT_EQ(source.classes.at(inner.type()), 1u);
  EXPECT_FALSE(source.has_interfaces);
  EXPECT_EQ(source.why_not_hashable, "");
}

}  // namespace
}  // namespace modcache::module
