// SPDX-License-Identifier: Apache-2.0
#include "module/lowered/lowering.h"

#include <c10/util/Exception.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/passes/freeze_module.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include "module/code/graph_node.h"
#include "module/code/source.h"
#include "module/identity/identity.h"
#include "module/lowered/lowered_call_graph.h"
#include "tensor/storable.h"
#include "tensor/tree.h"

namespace modcache::module {
namespace {

namespace jit = torch::jit;

// `with torch.autocast(...):` in TorchScript is a pass over the graph, which also changes the code
// of the methods that are called in it.
bool is_autocast(const jit::Node& node) {
  if (node.kind() != c10::prim::Enter && node.kind() != c10::prim::Exit) return false;
  const auto type = node.input(0)->type()->cast<c10::ClassType>();
  return type != nullptr && type->name().has_value() && type->name()->name() == "autocast";
}

bool leads_to_call(const jit::Node& node);

bool has_call(const jit::Block& block) {
  return std::any_of(block.nodes().begin(), block.nodes().end(),
                     [](const jit::Node* node) { return leads_to_call(*node); });
}

bool leads_to_call(const jit::Node& node) {
  if (is_lookup_or_run(node)) return true;
  if (node.kind() == c10::prim::CallMethod) {
    const auto type = node.input(0)->type()->cast<c10::ClassType>();
    jit::Function* const method = type == nullptr ? nullptr : type->findMethod(name_of(node));
    auto* const with_graph = method == nullptr ? nullptr : jit::tryToGraphFunction(*method);
    return with_graph != nullptr && has_call(*with_graph->graph()->block());
  }
  return std::any_of(node.blocks().begin(), node.blocks().end(),
                     [](const jit::Block* block) { return has_call(*block); });
}

// Every call in the methods of a module and its submodules, and the reasons why some cannot be
// lowered.
class Calls {
 public:
  explicit Calls(const ObjectPtr& module) { visit(module); }

  const std::vector<LoweredCallGraph>& found() const { return found_; }
  // One line per call that cannot be lowered.
  const std::vector<std::string>& obstacles() const { return obstacles_; }

 private:
  void visit(const ObjectPtr& object) {
    if (!seen_objects_.insert(object.get()).second) return;
    // Objects of one class share its graphs.
    if (seen_types_.insert(object->type().get()).second) {
      for (jit::Function* method : object->type()->methods()) {
        auto* const with_graph = jit::tryToGraphFunction(*method);
        if (with_graph != nullptr) visit(*with_graph->graph()->block(), object, *method);
      }
    }
    for (const at::IValue& slot : object->slots()) {
      if (slot.isObject() && slot.toObjectRef().type()->is_module()) visit(slot.toObject());
    }
  }

  void visit(jit::Block& block, const ObjectPtr& self, const jit::Function& method) {
    int autocasts = 0;
    for (jit::Node* node : block.nodes()) {
      if (is_autocast(*node)) autocasts += node->kind() == c10::prim::Enter ? 1 : -1;
      if (autocasts > 0 && leads_to_call(*node)) {
        note_obstacle(self, method,
                      "it is made within torch.autocast, which as part of one graph would reach "
                      "into the module that is called; enter torch.autocast in that module's "
                      "method, or around the model");
        continue;
      }
      if (is_lookup_or_run(*node)) add(*node, self, method);
      for (jit::Block* inner : node->blocks()) visit(*inner, self, method);
      for (const c10::Symbol name : node->attributeNames()) {  // the code of a fork
        if (node->kindOf(name) == jit::AttributeKind::g) {
          visit(*node->g(name)->block(), self, method);
        }
      }
    }
  }

  void add(jit::Node& node, const ObjectPtr& self, const jit::Function& method) {
    auto call = LoweredCallGraph::of(node, self);
    if (call.is_ok()) {
      found_.push_back(std::move(call).value());
    } else {
      note_obstacle(self, method, call.status().message());
    }
  }

  void note_obstacle(const ObjectPtr& self, const jit::Function& method, const std::string& why) {
    obstacles_.push_back("in " + method.qualname().name() + " of " + class_name_of(*self) + ": " +
                         why);
  }

  std::set<const c10::ivalue::Object*> seen_objects_;
  std::set<const c10::ClassType*> seen_types_;
  std::vector<LoweredCallGraph> found_;
  std::vector<std::string> obstacles_;
};

// Completes a clone of a module. A clone has the original's tensors, and two submodules where the
// original has one at two paths. This gives it tensors of its own, as its scope is fixed while the
// original's weights may change; and one submodule or tensor where the original has one.
class Copies {
 public:
  void complete(const ObjectPtr& original, const ObjectPtr& clone) {
    clones_.emplace(original.get(), clone);
    for (std::size_t i = 0; i < original->slots().size(); ++i) {
      const at::IValue& slot = original->getSlot(i);
      if (kind_of(slot) != AttributeKind::kObject) {
        clone->setSlot(i,
                       tensor::with_tensors(slot, [this](const at::Tensor& t) { return of(t); }));
        continue;
      }
      const auto known = clones_.find(&slot.toObjectRef());
      if (known != clones_.end()) {
        clone->setSlot(i, known->second);
      } else {
        complete(slot.toObject(), clone->getSlot(i).toObject());
      }
    }
  }

 private:
  at::Tensor of(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    at::Tensor& copy = tensors_[tensor.unsafeGetTensorImpl()];
    if (!copy.defined()) {
      const tensor::OrdinaryTensors ordinary;
      copy = tensor.detach().clone().set_requires_grad(tensor.requires_grad());
    }
    return copy;
  }

  std::map<const c10::ivalue::Object*, ObjectPtr> clones_;
  std::map<const at::TensorImpl*, at::Tensor> tensors_;
};

jit::Module copy_of(const jit::Module& module) {
  const jit::Module copy = module.clone(/*inplace=*/true);
  Copies().complete(module._ivalue(), copy._ivalue());
  return copy;
}

}  // namespace

void lower(const jit::Module& module) {
  // All calls are analysed before the first one is changed, as the code of one may contain another.
  const Calls calls(module._ivalue());
  std::string obstacles;
  for (const std::string& obstacle : calls.obstacles()) obstacles += "\n  " + obstacle;
  TORCH_CHECK(obstacles.empty(),
              "cache::lower: nothing was lowered, since these calls cannot be:", obstacles);
  for (const LoweredCallGraph& call : calls.found()) call.write();
}

jit::Module freeze(const jit::Module& module, const std::vector<std::string>& methods,
                   bool optimize_numerics) {
  // torch's own check needs an attribute that the first freezing removes.
  TORCH_CHECK(!module.hasattr("training") || !module.is_training(),
              "modcache.freeze: the model is in training mode, and freezing is for inference; call "
              "eval() on it first");
  const jit::Module copy = copy_of(module);
  lower(copy);
  // Freezes twice. The first pass keeps attributes that unreachable code would change, such as the
  // counter of a BatchNorm in training; in the second pass that code is gone.
  const jit::Module once = jit::freeze_module(copy, methods);
  return jit::freeze(once, methods, optimize_numerics);
}

}  // namespace modcache::module
