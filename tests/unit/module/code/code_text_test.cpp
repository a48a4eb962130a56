// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include <string>
#include <vector>

#include "module/code/source.h"

namespace modcache::module {
namespace {

namespace jit = torch::jit;

class CodeTextTest : public ::testing::Test {
 protected:
  CodeTextTest() {
    module_.define("def forward(self, x):\n  y = x + 1\n  y = y * 2 + y\n  return y - x\n");
  }

  jit::GraphFunction& forward() const {
    return static_cast<jit::GraphFunction&>(module_.get_method("forward").function());
  }
  std::string text() const {
    std::vector<at::IValue> constants;
    jit::PrintDepsTable dependencies;
    return text_of(forward(), constants, dependencies);
  }
  std::string printed_by_torch() const {
    std::vector<at::IValue> constants;
    jit::PrintDepsTable dependencies;
    jit::PythonPrint printer(constants, dependencies);
    printer.printMethod(forward());
    return printer.str();
  }
  // Appends the number as loading does, which takes it for a part of the name.
  void add_to_names(const char* number) const {
    for (jit::Node* node : forward().graph()->nodes()) {
      for (jit::Value* output : node->outputs()) {
        if (output->hasDebugName()) output->setDebugName(output->debugNameBase() + number);
      }
    }
  }

  jit::Module module_{"__torch__.Encoder"};
};

TEST_F(CodeTextTest, where_no_name_ends_in_a_number_it_is_what_torch_prints) {
  EXPECT_EQ(text(), printed_by_torch());
}

TEST_F(CodeTextTest, numbers_at_the_end_of_names_say_nothing) {
  const std::string before = text();
  add_to_names("7");
  EXPECT_NE(printed_by_torch(), before);
  EXPECT_EQ(text(), before);
}

TEST_F(CodeTextTest, the_function_itself_stays_as_it_is) {
  const std::string before = forward().graph()->toString();
  (void)text();
  EXPECT_EQ(forward().graph()->toString(), before);
}

}  // namespace
}  // namespace modcache::module
