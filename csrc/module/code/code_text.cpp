// SPDX-License-Identifier: Apache-2.0
#include "module/code/code_text.h"

#include <memory>
#include <utility>

#include "module/code/plain_forward.h"

namespace modcache::module {
namespace {

namespace jit = torch::jit;

// "input.1", "input0" -> "input"
std::string without_number(const jit::Value& value) {
  std::string name = value.debugNameBase();
  const auto last = name.find_last_not_of("0123456789");
  if (last != std::string::npos) name.erase(last + 1);
  return name;
}

void drop_numbers(jit::Value& value) {
  // A value without a name is printed within the expression that uses it, and must stay so.
  if (value.hasDebugName()) value.setDebugName(without_number(value));
}

void drop_numbers(jit::Block& block) {
  for (jit::Value* input : block.inputs()) drop_numbers(*input);
  for (jit::Node* node : block.nodes()) {
    for (jit::Value* output : node->outputs()) drop_numbers(*output);
    for (jit::Block* inner : node->blocks()) drop_numbers(*inner);
    // The code of a fork is an attribute of its node; a copied graph has its own copy of it.
    for (const c10::Symbol name : node->attributeNames()) {
      if (node->kindOf(name) == jit::AttributeKind::g) drop_numbers(*node->g(name)->block());
    }
  }
}

// Removes casts to a wider type (int to Optional[int]). They do nothing, and a module that was
// saved has some where the module that was compiled has none.
void drop_upcasts(jit::Block& block) {
  for (auto node = block.nodes().begin(); node != block.nodes().end(); ++node) {
    for (jit::Block* inner : node->blocks()) drop_upcasts(*inner);
    if (node->kind() != c10::prim::unchecked_cast) continue;
    if (!node->input()->type()->isSubtypeOf(*node->output()->type())) continue;
    node->output()->replaceAllUsesWith(node->input());
    node.destroyCurrent();
  }
}

}  // namespace

std::string text_of(const jit::GraphFunction& function, std::vector<at::IValue>& constants,
                    jit::PrintDepsTable& dependencies) {
  std::shared_ptr<jit::Graph> graph = function.graph()->copy();
  drop_upcasts(*graph->block());
  drop_numbers(*graph->block());
  const c10::QualifiedName& name = function.qualname();
  const c10::QualifiedName counted(c10::QualifiedName(name.prefix()), counted_name(name.name()));
  jit::GraphFunction numbered_anew(counted, std::move(graph), nullptr);
  numbered_anew.setSchema(function.getSchema());
  jit::PythonPrint printer(constants, dependencies);
  printer.printMethod(numbered_anew);
  return printer.str();
}

}  // namespace modcache::module
