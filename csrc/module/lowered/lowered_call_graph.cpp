// SPDX-License-Identifier: Apache-2.0
#include "module/lowered/lowered_call_graph.h"

#include <torch/csrc/jit/frontend/schema_matching.h>
#include <torch/csrc/jit/ir/constants.h>

#include <cstdint>
#include <exception>
#include <limits>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "module/call/declared.h"
#include "module/code/graph_node.h"
#include "module/code/source.h"
#include "module/lowered/lowered.h"
#include "tensor/torch_version.h"

namespace modcache::module {
namespace {

namespace jit = torch::jit;
using jit::Value;

constexpr std::size_t kModule = 0;
constexpr std::size_t kInput = 1;
constexpr std::size_t kKey = 2;
constexpr std::size_t kScope = 3;
constexpr std::size_t kMethodInput = 4;

c10::Symbol symbol(const char* op) {
  return c10::Symbol::fromQualString(std::string("cache::") + op);
}

std::optional<std::string> constant_text(const Value* value) {
  const auto constant = jit::toIValue(value);
  if (!constant.has_value() || !constant->isString()) return std::nullopt;
  return constant->toStringRef();
}

std::vector<std::string> split(const std::string& path) {
  std::vector<std::string> names;
  std::istringstream stream(path);
  for (std::string name; std::getline(stream, name, '.');) names.push_back(name);
  return names;
}

at::IValue attribute_at(const ObjectPtr& module, const std::string& path) {
  at::IValue value(module);
  for (const std::string& name : split(path)) value = value.toObject()->getAttr(name);
  return value;
}

// Returns the object that `value` is, if attributes lead to it from the graph's own self.
std::optional<ObjectPtr> resolve(const Value* value, const ObjectPtr& self) {
  std::vector<std::string> names;
  while (value->node()->kind() == c10::prim::GetAttr) {
    names.push_back(name_of(*value->node()));
    value = value->node()->input();
  }
  const jit::Graph& graph = *value->owningGraph();
  if (graph.inputs().empty() || graph.inputs()[0] != value) return std::nullopt;
  if (*value->type() != *self->type()) return std::nullopt;
  ObjectPtr object = self;
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    const at::IValue next = object->getAttr(*name);
    if (!next.isObject()) return std::nullopt;
    object = next.toObject();
  }
  return object;
}

// A tuple unpacks to several arguments; any other input is one.
void append_arguments(Value* input, std::vector<jit::NamedValue>& arguments) {
  if (input->type()->kind() != c10::TypeKind::TupleType) {
    arguments.emplace_back(input);
    return;
  }
  jit::Graph& graph = *input->owningGraph();
  jit::Node* const unpacked = graph.insertNode(graph.createTupleUnpack(input));
  for (Value* element : unpacked->outputs()) arguments.emplace_back(element);
}

}  // namespace

bool is_lookup_or_run(const jit::Node& node) {
  static const c10::Symbol kTensor = symbol("lookup_or_run");
  static const c10::Symbol kAny = symbol("lookup_or_run_any");
  return node.kind() == kTensor || node.kind() == kAny;
}

LoweredCallGraph::LoweredCallGraph(jit::Node& node, std::string method, std::string class_name)
    : node_(&node), method_(std::move(method)), class_name_(std::move(class_name)) {}

Result<LoweredCallGraph> LoweredCallGraph::of(jit::Node& node, const ObjectPtr& self) {
  const auto module = resolve(node.input(kModule), self);
  if (!module.has_value()) {
    return Status::invalid_argument(
        "the module that is called is no attribute of the model that TorchScript knows by name; "
        "call lookup_or_run(self.encoder, ...), and not inside torch.jit.fork");
  }
  if (node.inputs().size() > kMethodInput + 1) {
    return Status::invalid_argument(
        "its rows have lengths of their own (mask=), which a lowered call cannot look up");
  }
  const auto method = constant_text(node.input(kMethodInput));
  if (!method.has_value()) {
    return Status::invalid_argument("the name of the method is no constant");
  }
  LoweredCallGraph call(node, *method, class_name_of(**module));
  MODCACHE_RETURN_IF_ERROR(call.check_call(*(*module)->type()));
  MODCACHE_RETURN_IF_ERROR(call.understand(*module));
  return call;
}

Status LoweredCallGraph::check_call(const c10::ClassType& type) const {
  const std::string who = class_name_ + "." + method_;
  if (type.findMethod(method_) == nullptr) {
    return Status::invalid_argument(class_name_ + " has no method '" + method_ +
                                    "'; lower a model before it is frozen");
  }
  if (method_ == "forward" &&
      !(type.getForwardHooks().empty() && type.getForwardPreHooks().empty())) {
    return Status::invalid_argument(class_name_ + " has TorchScript hooks; put their work into " +
                                    "its forward");
  }
  try {
    // Match the schema in a scratch graph that is thrown away.
    jit::Graph scratch;
    std::vector<jit::NamedValue> arguments{
        jit::NamedValue(scratch.addInput()->setType(node_->input(kModule)->type()))};
    append_arguments(scratch.addInput()->setType(input_type()), arguments);
    jit::matchSchema(type.getMethod(method_).getSchema(), node_->sourceRange(), scratch, arguments,
                     {});
  } catch (const std::exception& error) {
    return Status::invalid_argument(who + " does not take an input of type " +
                                    input_type()->annotation_str() + ": " + tensor::text_of(error));
  }
  return Status::ok();
}

// Drops the shapes that a traced graph notes: they are those of the example input.
c10::TypePtr LoweredCallGraph::input_type() const {
  return c10::unshapedType(node_->input(kInput)->type());
}

Status LoweredCallGraph::understand(const ObjectPtr& module) {
  result_type_ = declared_type(*module->type(), method_);
  const Source source = read_source(module, method_);
  const Inventory inventory(module, source, TensorWatch::Hashing::kContents, nullptr);
  auto recipe = Recipe::of(source, inventory);
  if (!recipe.is_ok()) {
    return Status::invalid_argument(class_name_ +
                                    " cannot be lowered: " + recipe.status().message());
  }
  recipe_ = recipe.value().text();
  std::vector<at::IValue> values;
  for (const Inventory::Attribute& attribute : inventory.attributes()) {
    if (attribute.kind == AttributeKind::kObject) continue;
    reached_.push_back(attribute.path);
    // A container may change without an assignment to the attribute.
    if (attribute.is_written || attribute.kind == AttributeKind::kContainer) {
      replaceable_.push_back(attribute.path);
    }
    if (!attribute.is_read) continue;
    read_.push_back(attribute.path);
    values.push_back(attribute_at(module, attribute.path));
  }
  const auto scope = constant_text(node_->input(kScope));
  if (scope.has_value() && !scope->empty()) return Status::ok();
  const std::string help = "; give the call a scope=\"name@version\"";
  if (!inventory.is_hashed()) {
    return Status::invalid_argument(class_name_ +
                                    " has no fingerprint: " + inventory.why_not_hashable() + help);
  }
  // The recipe must give the module's own fingerprint, or the two would not share entries.
  const auto lowered = identify(recipe_, c10::ivalue::Tuple::create(std::move(values)), true);
  if (lowered.fingerprint != fingerprint_of(source.digest, inventory.digest())) {
    return Status::invalid_argument(class_name_ +
                                    " keeps objects of TorchScript classes in its attributes, " +
                                    "which a lowered graph cannot identify" + help);
  }
  return Status::ok();
}

void LoweredCallGraph::write() const {
  jit::Graph& graph = *node_->owningGraph();
  const jit::WithInsertPoint at_the_node(node_);
  Value* const call = write_call();
  Value* const result = write_runs(call);
  result->setType(node_->output()->type());
  node_->output()->replaceAllUsesWith(result);
  node_->destroy();
  graph.lint();
}

Value* LoweredCallGraph::insert(const char* op, std::vector<Value*> inputs) const {
  const std::vector<jit::NamedValue> arguments(inputs.begin(), inputs.end());
  return node_->owningGraph()->insert(symbol(op), arguments, {}, node_->sourceRange());
}

Value* LoweredCallGraph::write_call() const {
  jit::Graph& graph = *node_->owningGraph();
  Value* const identity = write_identity();
  Value* const arguments = graph
                               .insertNode(graph.createTuple(
                                   {node_->input(kInput), node_->input(kKey), write_result_type()}))
                               ->output();
  return insert("_lowered_call",
                {node_->input(kScope), identity, graph.insertConstant(counted_name(method_)),
                 graph.insertConstant(class_name_), insert("_held", {arguments}),
                 graph.insertConstant(node_->kind() == symbol("lookup_or_run_any"))});
}

Value* LoweredCallGraph::write_identity() const {
  jit::Graph& graph = *node_->owningGraph();
  Value* const recipe = graph.insertConstant(recipe_);
  return insert("_identity", {recipe, write_attributes(read_), node_->input(kScope)});
}

// Asks for the identity a second time: the weights may have changed while the call waited for
// another thread's run, or since the model was frozen, as torch.jit.freeze lets the constants and
// the model share memory. The argument `call` keeps TorchScript from folding this, and from merging
// it with the first question.
Value* LoweredCallGraph::write_identity_of_run(Value* call) const {
  Value* const recipe = node_->owningGraph()->insertConstant(recipe_);
  return insert("_identity_of_run", {recipe, write_attributes(read_), node_->input(kScope), call});
}

Value* LoweredCallGraph::write_state(Value* call, std::int64_t moment) const {
  Value* const attributes = write_attributes(reached_);
  // The argument `call` keeps TorchScript from folding a state, which means nothing in another
  // process. The argument `moment` keeps it from merging the two questions of a run.
  return insert("_state", {attributes, call, node_->owningGraph()->insertConstant(moment)});
}

Value* LoweredCallGraph::write_attributes(const std::vector<std::string>& paths) const {
  jit::Graph& graph = *node_->owningGraph();
  std::vector<Value*> values;
  for (const std::string& path : paths) {
    Value* value = node_->input(kModule);
    for (const std::string& name : split(path)) value = graph.insertGetAttr(value, name);
    values.push_back(value);
  }
  return graph.insertNode(graph.createTuple(values))->output();
}

// An empty list of the method's result type, which is how a graph passes a type to an operator.
Value* LoweredCallGraph::write_result_type() const {
  jit::Graph& graph = *node_->owningGraph();
  if (result_type_ == nullptr) return graph.insertConstant(at::IValue());
  return graph.insertNode(graph.createList(result_type_, {}))->output();
}

Value* LoweredCallGraph::as_result(Value* value) const {
  const c10::TypeKind wanted = node_->output()->type()->kind();
  if (wanted == c10::TypeKind::AnyType || wanted == value->type()->kind()) return value;
  return node_->owningGraph()->insertUncheckedCast(value, c10::TensorType::get());
}

Value* LoweredCallGraph::write_runs(Value* call) const {
  jit::Graph& graph = *node_->owningGraph();
  Value* const no_limit = graph.insertConstant(std::numeric_limits<std::int64_t>::max());
  Value* const must_run = insert("_must_run", {call});
  const c10::TypePtr type = node_->output()->type();
  Value* const none = graph.insertNode(graph.createUninitialized(type))->output();
  jit::Node* const loop =
      graph.insertNode(graph.create(c10::prim::Loop, {no_limit, must_run, none}, 1));
  loop->setSourceRange(node_->sourceRange());
  loop->output()->setType(type);
  {
    jit::Block* const body = loop->addBlock();
    body->addInput()->setType(c10::IntType::get());
    body->addInput()->setType(type);
    const jit::WithInsertPoint inside(body);
    const Run run = write_run(call);
    body->registerOutput(run.finished);
    body->registerOutput(as_result(run.result));
  }
  jit::Node* const choice =
      graph.insertNode(graph.create(c10::prim::If, {insert("_is_last_run", {call})}, 1));
  choice->setSourceRange(node_->sourceRange());
  choice->addBlock()->registerOutput(loop->output());
  {
    jit::Block* const rows = choice->addBlock();
    const jit::WithInsertPoint inside(rows);
    rows->registerOutput(as_result(insert("_value_of", {call})));
  }
  return choice->output();
}

// Calls the module's method on the input that `call` has to run.
LoweredCallGraph::Run LoweredCallGraph::write_run(Value* call) const {
  jit::Graph& graph = *node_->owningGraph();
  Value* const identity = write_identity_of_run(call);
  Value* const before = write_state(call, 0);
  Value* const kept = insert("_held", {write_attributes(replaceable_)});
  Value* const input =
      graph.insertUncheckedCast(insert("_begin_run", {call, identity, kept}), input_type());
  std::vector<jit::NamedValue> arguments{jit::NamedValue(node_->input(kModule))};
  append_arguments(input, arguments);
  const auto module_type = node_->input(kModule)->type()->expect<c10::ClassType>();
  const jit::MatchedSchema matched = jit::matchSchema(module_type->getMethod(method_).getSchema(),
                                                      node_->sourceRange(), graph, arguments, {});
  Value* const result = graph.insertMethodCall(method_, matched);
  Value* const after = write_state(call, 1);
  Value* const held = insert("_held", {result});
  return {result, insert("_finish_run", {call, held, before, after})};
}

}  // namespace modcache::module
