// SPDX-License-Identifier: Apache-2.0
#include "module/code/source.h"

#include <ATen/core/class_type.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/ir.h>

#include <cstdint>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "module/code/graph_node.h"
#include "module/code/plain_value.h"

namespace modcache::module {
namespace {

namespace jit = torch::jit;

constexpr auto kNoClass = ~std::uint64_t{0};

// Classes in the order in which they were first seen.
class ClassList {
 public:
  void add(const c10::ClassTypePtr& type) {
    if (seen_types_.insert(type.get()).second) types_.push_back(type);
  }

  // Adds the classes of all objects that `value` leads to.
  void add_all(const at::IValue& value) {
    if (value.isObject()) {
      const auto object = value.toObject();
      if (!seen_objects_.insert(object.get()).second) return;
      add(object->type());
      for (const at::IValue& slot : object->slots()) add_all(slot);
    } else if (value.isTuple()) {
      for (const at::IValue& element : value.toTupleRef().elements()) add_all(element);
    } else if (value.isList()) {
      if (may_hold_objects(*value.type()->containedType(0))) {
        for (const at::IValue& element : value.toListRef()) add_all(element);
      }
    } else if (value.isGenericDict()) {
      if (!may_hold_objects(*value.type()->containedType(1))) return;
      for (const auto& item : value.toGenericDict()) add_all(item.value());
    }
  }

  std::size_t size() const { return types_.size(); }
  c10::ClassTypePtr operator[](std::size_t index) const { return types_[index]; }

 private:
  // Avoids searching long lists of numbers.
  static bool may_hold_objects(const c10::Type& element) {
    switch (element.kind()) {
      case c10::TypeKind::IntType:
      case c10::TypeKind::FloatType:
      case c10::TypeKind::BoolType:
      case c10::TypeKind::StringType:
      case c10::TypeKind::TensorType: return false;
      default: return true;
    }
  }

  std::vector<c10::ClassTypePtr> types_;
  std::unordered_set<const c10::ClassType*> seen_types_;
  std::unordered_set<const c10::ivalue::Object*> seen_objects_;
};

// Walks the graphs of a method and of the functions that it calls, in the order in which the code
// names them.
class Reach {
 public:
  struct Reached {
    const jit::Function* function;
    c10::ClassTypePtr owner;  // null for a free function
  };

  explicit Reach(const c10::intrusive_ptr<c10::ivalue::Object>& module) {
    classes_.add_all(module);
  }

  void visit(const jit::Function& function, const c10::ClassTypePtr& owner) {
    if (!seen_.insert(&function).second) return;
    functions_.push_back({&function, owner});
    // Built-in and torchbind functions have no graph, so their name represents them.
    auto* with_graph = jit::tryToGraphFunction(const_cast<jit::Function&>(function));
    if (with_graph != nullptr) visit(*with_graph->graph()->block());
  }

  // Visits the methods that interface calls may reach: those of any class of the module, or of an
  // object that the code makes.
  void visit_interfaces() {
    std::size_t known = 0;
    do {
      known = functions_.size();
      for (std::size_t call = 0; call < interface_calls_.size(); ++call) {
        const auto [receiver, name] = interface_calls_[call];
        for (std::size_t i = 0; i < classes_.size(); ++i) {
          const c10::ClassTypePtr type = classes_[i];
          const jit::Function* method = type->findMethod(name);
          if (method != nullptr && type->isSubtypeOf(*receiver)) visit(*method, type);
        }
      }
    } while (functions_.size() != known);  // a new function may make further objects and calls
  }

  bool has_interfaces() const { return !interface_calls_.empty(); }
  const std::string& why_not_hashable() const { return why_not_hashable_; }
  const std::vector<Reached>& functions() const { return functions_; }
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
      case c10::prim::CallMethod: visit_method(node.inputs().at(0)->type(), name_of(node)); break;
      case c10::prim::CallFunction:
        if (auto type = node.inputs().at(0)->type()->cast<c10::FunctionType>()) {
          visit(*type->function(), nullptr);
        }
        break;
      case c10::prim::CreateObject:
        classes_.add(node.output()->type()->expect<c10::ClassType>());
        break;
      case c10::prim::ModuleContainerIndex: note_submodules(node.inputs().at(0)->type()); break;
      case c10::prim::PythonOp:
        // A function with @torch.jit.ignore is Python code, which TorchScript cannot print.
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
      (attributes_[type].*which).insert(name_of(node));
    }
  }

  // self.stages[name] reads a submodule that only the run determines, without a GetAttr. So all
  // submodules of the container count as read.
  void note_submodules(const c10::TypePtr& container) {
    const auto type = container->cast<c10::ClassType>();
    if (type == nullptr) return;
    for (std::size_t i = 0; i < type->numAttributes(); ++i) {
      const auto attribute = type->getAttribute(i)->cast<c10::ClassType>();
      const bool is_interface = type->getAttribute(i)->kind() == c10::TypeKind::InterfaceType;
      if (is_interface || (attribute != nullptr && attribute->is_module())) {
        attributes_[type].read.insert(type->getAttributeName(i));
      }
    }
  }

  void visit_method(const c10::TypePtr& receiver, const std::string& name) {
    if (auto type = receiver->cast<c10::ClassType>()) {
      if (const jit::Function* method = type->findMethod(name)) visit(*method, type);
    } else {
      interface_calls_.emplace_back(receiver, name);
    }
  }

  ClassList classes_;
  std::unordered_set<const jit::Function*> seen_;
  std::vector<Reached> functions_;
  std::vector<std::pair<c10::TypePtr, std::string>> interface_calls_;
  std::map<c10::ClassTypePtr, ReachedAttributes> attributes_;
  std::string why_not_hashable_;
};

// Functions that share a name share a digest.
void note_function(const jit::Function& function, const std::string& text, Source& source) {
  const std::string name = without_mangling(function.qualname().qualifiedName());
  Digest128& digest = source.functions[name];
  Xxh3Hasher hasher;
  hasher.add(digest.bytes());
  hasher.add(text);
  digest = hasher.digest();
}

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.';
}

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

Source read_source(const c10::intrusive_ptr<c10::ivalue::Object>& module,
                   const std::string& method) {
  Reach reach(module);
  const auto type = module->type();
  reach.visit(type->getMethod(method), type);
  if (method == "forward") {
    for (const jit::Function* hook : type->getForwardPreHooks()) reach.visit(*hook, type);
    for (const jit::Function* hook : type->getForwardHooks()) reach.visit(*hook, type);
  }
  reach.visit_interfaces();

  Source source;
  std::vector<at::IValue> constants;
  jit::PrintDepsTable dependencies;
  Xxh3Hasher hasher;
  for (const auto& [function, owner] : reach.functions()) {
    // The text of a method does not name its class, and that of a call does not name the receiver's
    // class.
    hasher.add(owner != nullptr
                   ? source.classes.try_emplace(owner, source.classes.size()).first->second
                   : kNoClass);
    if (owner == nullptr || !function->isGraphFunction()) {
      hasher.add(source.names.stabilize(function->qualname().qualifiedName()));
    }
    if (!function->isGraphFunction()) continue;
    const auto& with_graph = static_cast<const jit::GraphFunction&>(*function);
    const std::string text = source.names.stabilize(text_of(with_graph, constants, dependencies));
    hasher.add(text);
    note_function(*function, text, source);
  }
  std::vector<std::string> class_names(source.classes.size());
  for (const auto& [owner, number] : source.classes)
    class_names[number] = source.name_in_code(*owner);
  for (const std::string& name : class_names) hasher.add(name);
  source.why_not_hashable = reach.why_not_hashable();
  for (const at::IValue& constant : constants) {
    hasher.add(constant_digest(constant, source.why_not_hashable).bytes());
  }
  source.digest = hasher.digest();
  source.attributes = reach.take_attributes();
  source.has_interfaces = reach.has_interfaces();
  return source;
}

std::string Source::name_in_code(const c10::ClassType& type) const {
  return type.name().has_value() ? names.known(type.name()->qualifiedName()) : std::string();
}

std::string class_name_of(const c10::ivalue::Object& module) {
  return module.type()->name().has_value() ? module.type()->name()->name() : "module";
}

std::string without_mangling(const std::string& name) {
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

std::string NameStabilizer::stabilize(const std::string& text) {
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

std::string NameStabilizer::known(const std::string& name) const {
  const auto found = stable_.find(name);
  return found != stable_.end() ? found->second : std::string();
}

const std::string& NameStabilizer::stable_name(const std::string& name) {
  auto [known, is_new] = stable_.try_emplace(name);
  if (is_new) {
    const std::string base = without_mangling(name);
    known->second = base + '#' + std::to_string(count_[base]++);
  }
  return known->second;
}

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
