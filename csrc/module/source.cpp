// SPDX-License-Identifier: Apache-2.0
#include "module/source.h"

#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/serialization/python_print.h>

#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "module/plain_value.h"

namespace modcache::module {
namespace {

namespace jit = torch::jit;

void collect_types(const c10::intrusive_ptr<c10::ivalue::Object>& object,
                   std::unordered_set<const c10::ivalue::Object*>& seen,
                   std::vector<c10::ClassTypePtr>& types) {
  if (!seen.insert(object.get()).second) return;
  types.push_back(object->type());
  for (const at::IValue& slot : object->slots()) {
    if (slot.isObject()) collect_types(slot.toObject(), seen, types);
  }
}

// Walks the graphs of a method and of what it calls, in the order in which the code names them.
class Reach {
 public:
  explicit Reach(const c10::intrusive_ptr<c10::ivalue::Object>& module) {
    std::unordered_set<const c10::ivalue::Object*> seen;
    collect_types(module, seen, object_types_);
  }

  void visit(const jit::Function& function) {
    if (!seen_.insert(&function).second) return;
    functions_.push_back(&function);
    // Built-in and torchbind functions have no graph; their name stands for them.
    auto* with_graph = jit::tryToGraphFunction(const_cast<jit::Function&>(function));
    if (with_graph != nullptr) visit(*with_graph->graph()->block());
  }

  bool has_interfaces() const { return has_interfaces_; }
  const std::string& why_not_hashable() const { return why_not_hashable_; }
  const std::vector<const jit::Function*>& functions() const { return functions_; }
  std::map<c10::ClassTypePtr, ReachedAttributes> take_attributes() {
    return std::move(attributes_);
  }

 private:
  void visit(const jit::Block& block) {
    for (const jit::Node* node : block.nodes()) visit(*node);
  }

  void visit(const jit::Node& node) {
    switch (node.kind()) {
      case c10::prim::GetAttr: note(node, &ReachedAttributes::read); break;
      case c10::prim::SetAttr: note(node, &ReachedAttributes::written); break;
      case c10::prim::CallMethod:
        visit_method(node.inputs().at(0)->type(), node.s(c10::attr::name));
        break;
      case c10::prim::CallFunction:
        if (auto type = node.inputs().at(0)->type()->cast<c10::FunctionType>()) {
          visit(*type->function());
        }
        break;
      case c10::prim::PythonOp:
        // @torch.jit.ignore: its code is not TorchScript's to show.
        why_not_hashable_ = "the code calls Python (torch.jit.ignore)";
        break;
      default: break;
    }
    for (const jit::Block* block : node.blocks()) visit(*block);
    // Subgraphs of fork and of fused groups are attributes rather than blocks.
    for (const c10::Symbol name : node.attributeNames()) {
      if (node.kindOf(name) == jit::AttributeKind::g) visit(*node.g(name)->block());
    }
  }

  void note(const jit::Node& node, std::set<std::string> ReachedAttributes::*which) {
    if (auto type = node.inputs().at(0)->type()->cast<c10::ClassType>()) {
      (attributes_[type].*which).insert(node.s(c10::attr::name));
    }
  }

  void visit_method(const c10::TypePtr& receiver, const std::string& name) {
    if (auto type = receiver->cast<c10::ClassType>()) {
      if (const jit::Function* method = type->findMethod(name)) visit(*method);
      return;
    }
    // An interface: any class of the module that has the method may be meant.
    has_interfaces_ = true;
    for (const auto& type : object_types_) {
      const jit::Function* method = type->findMethod(name);
      if (method != nullptr && type->isSubtypeOf(*receiver)) visit(*method);
    }
  }

  std::vector<c10::ClassTypePtr> object_types_;
  std::unordered_set<const jit::Function*> seen_;
  std::vector<const jit::Function*> functions_;
  std::map<c10::ClassTypePtr, ReachedAttributes> attributes_;
  bool has_interfaces_ = false;
  std::string why_not_hashable_;
};

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.';
}

// "__torch__.a.___torch_mangle_7.B" -> "__torch__.a.B#0", with the same number for the same name
// throughout, in the order of appearance among names that differ only in their mangling.
class NameStabilizer {
 public:
  std::string stabilize(const std::string& text) {
    static const std::string kRoot = "__torch__";
    std::string out;
    out.reserve(text.size());
    std::size_t position = 0;
    while (true) {
      const std::size_t start = text.find(kRoot, position);
      if (start == std::string::npos) break;
      std::size_t end = start;
      while (end < text.size() && is_name_char(text[end])) ++end;
      out.append(text, position, start - position);
      out += stable_name(text.substr(start, end - start));
      position = end;
    }
    out.append(text, position, std::string::npos);
    return out;
  }

 private:
  static std::string without_mangling(const std::string& name) {
    static const std::string kMangle = "___torch_mangle_";
    std::string out = name;
    for (auto at = out.find(kMangle); at != std::string::npos; at = out.find(kMangle, at)) {
      std::size_t end = at + kMangle.size();
      while (end < out.size() && out[end] >= '0' && out[end] <= '9') ++end;
      if (end < out.size() && out[end] == '.') ++end;
      out.erase(at, end - at);
    }
    return out;
  }

  const std::string& stable_name(const std::string& name) {
    auto [known, is_new] = stable_.try_emplace(name);
    if (is_new) {
      const std::string base = without_mangling(name);
      known->second = base + '#' + std::to_string(count_[base]++);
    }
    return known->second;
  }

  std::unordered_map<std::string, std::string> stable_;
  std::unordered_map<std::string, int> count_;
};

}  // namespace

Source read_source(const c10::intrusive_ptr<c10::ivalue::Object>& module,
                   const std::string& method) {
  Reach reach(module);
  const auto type = module->type();
  reach.visit(type->getMethod(method));
  if (method == "forward") {
    for (const jit::Function* hook : type->getForwardPreHooks()) reach.visit(*hook);
    for (const jit::Function* hook : type->getForwardHooks()) reach.visit(*hook);
  }

  std::vector<at::IValue> constants;
  jit::PrintDepsTable dependencies;
  NameStabilizer names;
  Xxh3Hasher hasher;
  for (const jit::Function* function : reach.functions()) {
    if (!function->isGraphFunction()) {
      hasher.add(names.stabilize(function->qualname().qualifiedName()));
      continue;
    }
    jit::PythonPrint printer(constants, dependencies);
    printer.printMethod(*function);
    hasher.add(names.stabilize(printer.str()));
  }
  Source source;
  source.why_not_hashable = reach.why_not_hashable();
  for (const at::IValue& constant : constants) {
    hasher.add(constant_digest(constant, source.why_not_hashable).bytes());
  }
  source.digest = hasher.digest();
  source.attributes = reach.take_attributes();
  source.has_interfaces = reach.has_interfaces();
  return source;
}

}  // namespace modcache::module
