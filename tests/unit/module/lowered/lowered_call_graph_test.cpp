// SPDX-License-Identifier: Apache-2.0
//
// Which calls can be lowered. Nodes are put into graphs by hand, and none is written: the operators
// are outside this room.
#include "module/lowered/lowered_call_graph.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

#include <string>

#include "support/module_fixture.h"

namespace modcache::module {
namespace {

namespace jit = torch::jit;
using ::testing::HasSubstr;

class LoweredCallGraphTest : public testing::ModuleTest {
 protected:
  LoweredCallGraphTest() {
    encoder_.register_buffer("weight", at::ones({2}));
    encoder_.define(
        "def forward(self, x):\n  return x * self.weight\n"
        "def pair(self, x, n: int):\n  return x * n\n");
    model_.register_module("encoder", encoder_);
    model_.define("def forward(self, x):\n  return x\n");
  }

  struct Asked {
    const char* op = "cache::lookup_or_run";
    std::string method = "forward";
    std::string scope;
    bool is_of_attribute = true;
  };
  // The status of a call in the model's forward.
  Status understood(const Asked& asked) {
    jit::Graph& graph = *model_.get_method("forward").graph();
    jit::Node* const end = graph.return_node();
    const jit::WithInsertPoint before_the_end(end);
    jit::Value* module = graph.inputs()[0];
    if (asked.is_of_attribute) {
      module = graph.insertGetAttr(module, "encoder");
    } else {
      module = graph.insertNode(graph.createUninitialized(encoder_.type()))->output();
    }
    jit::Node* const node = graph.insertNode(
        graph.create(c10::Symbol::fromQualString(asked.op),
                     {module, graph.inputs()[1], graph.insertConstant("key"),
                      graph.insertConstant(asked.scope), graph.insertConstant(asked.method)}));
    return LoweredCallGraph::of(*node, model_._ivalue()).status();
  }

  jit::Module encoder_{"__torch__.Encoder"};
  jit::Module model_{"__torch__.Model"};
};

TEST_F(LoweredCallGraphTest, calls_are_those_of_both_operators) {
  jit::Graph graph;
  const auto node = [&graph](const char* op) {
    return graph.create(c10::Symbol::fromQualString(op));
  };
  EXPECT_TRUE(is_lookup_or_run(*node("cache::lookup_or_run")));
  EXPECT_TRUE(is_lookup_or_run(*node("cache::lookup_or_run_any")));
  EXPECT_FALSE(is_lookup_or_run(*node("cache::lookup")));
  EXPECT_FALSE(is_lookup_or_run(*node("aten::add")));
}

TEST_F(LoweredCallGraphTest, a_call_of_a_submodule_is_understood) {
  const Status status = understood({});
  EXPECT_TRUE(status.is_ok()) << status.message();
}

TEST_F(LoweredCallGraphTest, a_module_that_is_no_attribute_is_refused) {
  Asked asked;
  asked.is_of_attribute = false;
  EXPECT_THAT(understood(asked).message(), HasSubstr("no attribute of the model"));
}

TEST_F(LoweredCallGraphTest, a_method_that_is_not_there_is_refused) {
  Asked asked;
  asked.method = "encode";
  EXPECT_THAT(understood(asked).message(), HasSubstr("Encoder has no method 'encode'"));
}

TEST_F(LoweredCallGraphTest, an_input_that_the_method_does_not_take_is_refused) {
  Asked asked;
  asked.method = "pair";
  EXPECT_THAT(understood(asked).message(), HasSubstr("Encoder.pair does not take an input"));
}

TEST_F(LoweredCallGraphTest, a_module_without_a_fingerprint_needs_a_scope) {
  encoder_.setattr("weight", at::ones({2}).to_sparse());
  Asked asked;
  EXPECT_THAT(understood(asked).message(), HasSubstr("scope=\"name@version\""));
  asked.scope = "encoder@1";
  EXPECT_TRUE(understood(asked).is_ok());
}

}  // namespace
}  // namespace modcache::module
