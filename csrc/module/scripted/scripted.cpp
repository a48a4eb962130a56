// SPDX-License-Identifier: Apache-2.0
//
// Calls of TorchScript modules: from the arguments through a Call to the result.
#include "module/scripted/scripted.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/version.h>
#include <unistd.h>

#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/hash.h"
#include "cache/cache.h"
#include "cache/mode.h"
#include "module/call/call.h"
#include "module/call/current_cache.h"
#include "module/call/declared.h"
#include "module/call/manifest.h"
#include "module/call/rules.h"
#include "module/call/run.h"
#include "module/code/source.h"
#include "module/identity/identity.h"
#include "tensor/rows.h"
#include "tensor/tree.h"

namespace modcache::module {
namespace {

// A method of a module that was checked to have it. Each part is looked up once, since while the
// mode is off a call consists of little else.
struct Method {
  ObjectPtr module;
  c10::ClassTypePtr type;
  torch::jit::Function* function = nullptr;

  std::string called() const { return class_name_of(*module) + "." + function->name(); }
};

bool is_training(const c10::ivalue::Object& module) {
  const auto slot = module.type()->findAttributeSlot("training");
  if (!slot.has_value()) return false;
  const at::IValue& value = module.getSlot(*slot);
  return value.isBool() && value.toBool();
}

[[noreturn]] void refuse_method(const char* op, const at::IValue& module,
                                const std::string& method) {
  TORCH_CHECK(module.isObject() && module.toObjectRef().type()->is_module(), op,
              ": module must be a TorchScript module (torch.jit.script or "
              "torch.jit.trace), got ",
              module.tagKind(), module.isObject() ? " of a class that is no module" : "");
  const at::ivalue::Object& object = module.toObjectRef();
  std::string known;
  for (const auto* function : object.type()->methods()) {
    known += (known.empty() ? "" : ", ") + function->name();
  }
  TORCH_CHECK(false, op, ": ", class_name_of(object), " has no method '", method,
              "'; it has: ", known.empty() ? "none" : known,
              ". torch.jit.freeze removes the methods of submodules that the model itself does not "
              "call. Freeze the model with modcache.freeze(scripted), or have its calls lowered "
              "before you freeze it: torch.ops.cache.lower(scripted)");
}

Method method_of(const char* op, const at::IValue& module, const std::string& name) {
  Method method;
  if (module.isObject()) {
    method.type = module.toObjectRef().type();
    if (method.type->is_module()) method.function = method.type->findMethod(name);
  }
  if (method.function == nullptr) refuse_method(op, module, name);
  method.module = module.toObject();
  return method;
}

// Returns whether TorchScript's own hooks run around the method, as they do around forward.
bool runs_hooks(const Method& method) {
  const bool has_hooks =
      !method.type->getForwardPreHooks().empty() || !method.type->getForwardHooks().empty();
  return has_hooks && method.function->name() == "forward";
}

// Returns whether the type takes every tensor, as that of `x: Tensor` and that of a bare `x` do.
bool takes_any_tensor(const c10::Type& type) {
  if (&type == at::TensorType::get().get()) return true;
  const auto* const tensor = type.castRaw<at::TensorType>();
  return tensor != nullptr && tensor->isInferredType();
}

// Returns whether the input is the only argument and needs no conversion.
bool takes_as_it_is(const Method& method, const at::IValue& input) {
  const auto& arguments = method.function->getSchema().arguments();
  return input.isTensor() && arguments.size() == 2 && takes_any_tensor(*arguments[1].type()) &&
         !runs_hooks(method);
}

at::IValue run(const Method& method, at::IValue input) {
  std::vector<at::IValue> arguments;
  // Function::operator() compares each argument with the schema, which costs as much as a small
  // layer.
  if (takes_as_it_is(method, input)) {
    arguments.reserve(2);
    arguments.emplace_back(method.module);
    arguments.push_back(std::move(input));
    method.function->run(arguments);
    return std::move(arguments.front());
  }
  const bool has_hooks = runs_hooks(method);
  if (input.isTuple()) {
    const auto& elements = input.toTupleRef().elements();
    arguments.reserve(elements.size() + 1);
    if (!has_hooks) arguments.emplace_back(method.module);
    arguments.insert(arguments.end(), elements.begin(), elements.end());
  } else {
    arguments.reserve(2);
    if (!has_hooks) arguments.emplace_back(method.module);
    arguments.push_back(std::move(input));
  }
  // Module::operator() runs the hooks, and adds the module to the arguments itself.
  if (has_hooks) return torch::jit::Module(method.module)(std::move(arguments));
  return (*method.function)(std::move(arguments));
}

// The module of a call and its state during the call.
class Target {
 public:
  explicit Target(const ScriptedCall& call) : call_(call) {
    if (call.unloaded == nullptr) take(call.module);
  }

  // Sets what the call is looked up under. Returns false when it is to be run uncached. Then it was
  // counted, once for each of its rows. REQUIRES: the mode is not off.
  bool prepare(CallParts& parts, tensor::Per per, std::int64_t rows) {
    parts.method = counted_name(call_.method);
    parts.padding = call_.padding;
    parts.is_ragged = call_.is_ragged;
    parts.module = call_.unloaded == nullptr ? &call_.module.toObjectRef() : nullptr;
    if (call_.unloaded != nullptr) parts.class_name = call_.unloaded->name;
    if (!read_input(parts, call_.input, per, rows)) return false;
    if (method_.module == nullptr) {
      set_unloaded(parts);
      return true;
    }
    identity_ = identity_of(method_.module, call_.method);
    if (at::GradMode::is_enabled()) {
      parts.grad_pattern =
          grad_pattern(identity_->requiring_grad(method_.module).pattern(), parts.input);
    }
    grad_pattern_ = parts.grad_pattern;
    // After a result with a graph the module is in training, so it is run without a fingerprint. If
    // this run gives no graph, later calls are fingerprinted again.
    if (identity_->gave_grad(parts.grad_pattern)) return true;
    parts.scope = call_.scope;
    if (!parts.scope.empty()) return true;
    fingerprint_ = identity_->fingerprint(method_.module);
    if (fingerprint_.text.empty()) {
      refuse_unidentified(parts, rows, fingerprint_.why_not_hashable);
      return false;
    }
    parts.scope = fingerprint_.text;
    return true;
  }

  at::IValue run_uncached() {
    load();
    at::IValue result = run(method_, call_.input);
    check_wanted(result);
    return result;
  }

  // Makes the steps of a run, and returns the value.
  at::IValue make(Run& run, bool* are_apart) {
    while (true) {
      at::IValue own;
      bool is_whole = false;
      while (const Step* const step = run.step()) {
        if (step->kind == Step::Kind::kRun) {
          is_whole = step->is_whole_input;
          own = make_run(*step, run);
        } else {
          run.finish(run_unseen(*step));
        }
        note(run.outcome(), run.parts());
      }
      auto value = run.value();
      // The module's own result has the declared type already.
      if (!value.has_value()) return own;
      std::string why_apart;
      if (auto of_type = value_of(*std::move(value), why_apart, are_apart)) return *of_type;
      if (is_whole) return own;
      run.reject(why_apart);
    }
  }

  // Returns a stored value as the method would return it; nullopt: it is to be rejected.
  std::optional<at::IValue> value_of(CallValue value, std::string& why_apart, bool* are_apart) {
    auto* const lone = std::get_if<at::Tensor>(&value);
    if (lone != nullptr && may_return_tensor()) return std::move(*lone);
    if (are_apart != nullptr) *are_apart = std::holds_alternative<std::vector<tensor::Flat>>(value);
    return declared().value_of(std::move(value), why_apart);
  }

 private:
  // Runs the module on what is missing.
  at::IValue make_run(const Step& step, Run& run) {
    load();
    // All runs of a call are stored under the state that the module had before the first of them.
    if (before_ == nullptr) {
      before_ = fingerprint_.before;
      if (before_ == nullptr || before_->has_uncounted())
        before_ = identity_->observe(method_.module);
      if (fingerprint_.text.empty() || fingerprint_.before == nullptr) identify_loaded();
    }
    run.start();
    at::IValue result = module::run(method_, step.input_of(call_.input));
    RunFacts facts;
    facts.weights = fingerprint_.weights;
    if (is_another_) {
      facts.impure_because =
          "weights of " + class_name_of(*method_.module) + " changed while the call waited";
    } else if (auto changed = Identity::changed_since(*before_, method_.module)) {
      facts.impure_because =
          *changed + " of " + class_name_of(*method_.module) + " changed during the run";
    }
    check_wanted(result);
    tensor::Flat flat = tensor::flatten(result);
    const bool has_graph = flat.requires_grad();
    facts.is_scripted = true;
    facts.is_training = is_training(*method_.module);
    if (has_graph) facts.requiring_grad = identity_->requiring_grad(method_.module).count;
    run.finish(std::move(flat), facts);
    if (grad_pattern_ != 0) identity_->note_gave_grad(grad_pattern_, has_graph);
    return result;
  }

  // The fingerprint of a module that was loaded for this run, which was known before.
  void identify_loaded() {
    if (fingerprint_.text.empty()) return;
    Identity::Fingerprint now = identity_->fingerprint(method_.module);
    is_another_ = now.text != fingerprint_.text;
    fingerprint_.weights = std::move(now.weights);
  }

  // Runs the module on another input, for a check or a trial. It retains no trace of that. nullopt:
  // it raised, or would.
  std::optional<tensor::Flat> run_unseen(const Step& step) {
    // A method of TorchScript declares all that it takes.
    if (step.kind == Step::Kind::kTrial && step.trial.kind == PaddingTrial::Kind::kUnused) {
      return std::nullopt;
    }
    const KeptAttributes kept(method_.module);
    std::optional<tensor::Flat> output;
    try {
      // A cache inside must not take these rows for those that their keys name.
      const cache::ModeGuard off(cache::Mode::kOff);
      const at::IValue input =
          step.kind == Step::Kind::kCheck
              ? step.input_of(call_.input)
              : tensor::one_row_of_length(call_.input, step.trial.row, *call_.padding,
                                          step.trial.length, step.trial.kept);
      output = tensor::flatten(run(method_, input));
    } catch (const std::exception&) {  // the module may not take such an input
      output.reset();
    }
    kept.restore();
    return output;
  }

  void check_wanted(const at::IValue& result) {
    if (!result.isTensor()) declared().check_wanted(false, result.tagKind());
  }

  // Returns whether a stored tensor is what the method returns.
  bool may_return_tensor() const {
    if (method_.function == nullptr) return false;
    const auto& returns = method_.function->getSchema().returns();
    return returns.size() == 1 && returns[0].type()->kind() == c10::TypeKind::TensorType;
  }

  std::string name() const {
    return call_.unloaded != nullptr ? call_.unloaded->name
                                     : class_name_of(call_.module.toObjectRef());
  }

  const Declared& declared() {
    if (!declared_.has_value()) {
      const c10::TypePtr type =
          method_.module == nullptr ? nullptr : declared_type(*method_.type, call_.method);
      declared_ = {name() + "." + call_.method, type, call_.want, call_.asked};
    }
    return *declared_;
  }

  void take(const at::IValue& module) {
    method_ = method_of(call_.asked.name, module, call_.method);
    declared_.reset();
  }

  void load() {
    if (method_.module != nullptr) return;
    take(call_.unloaded->load());
    identity_ = identity_of(method_.module, call_.method);
  }

  void set_unloaded(CallParts& parts) {
    parts.grad_pattern = grad_pattern(0, parts.input);
    grad_pattern_ = parts.grad_pattern;
    if (call_.scope.empty()) fingerprint_.text = call_.unloaded->fingerprint;
    parts.scope = call_.scope.empty() ? fingerprint_.text : call_.scope;
  }

  // Remembers what explain() will report.
  void note(const Outcome& outcome, const CallParts& parts) {
    identity_->note_refusal(outcome.refused_for, outcome.refusal, parts.scope);
    if (!outcome.has_stored || !lacks_manifest(parts)) return;
    put_manifest(
        parts, class_name_of(*method_.module),
        describe_scripted(method_.module, parts.scope, call_.method, !fingerprint_.text.empty()));
  }

  const ScriptedCall& call_;
  Method method_;  // without a module: not loaded yet
  std::optional<Declared> declared_;
  std::shared_ptr<Identity> identity_;
  std::shared_ptr<const Inventory> before_;
  Identity::Fingerprint fingerprint_;  // of the text "": the scope was given
  bool is_another_ = false;
  std::uint64_t grad_pattern_ = 0;
};

void append_json(std::string& out, const std::string& text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += "\\u00" + hex_of({&c, 1});
    } else {
      out += c;
    }
  }
  out += '"';
}

void append_member(std::string& out, const char* name, const std::string& text) {
  append_json(out, name);
  out += ':';
  append_json(out, text);
  out += ',';
}

// {"name":"16 hexadecimal digits",...}
class DigestsText {
 public:
  void add(const std::string& name, const Digest128& digest) {
    if (text_.size() > 1) text_ += ',';
    append_json(text_, name);
    text_ += ':';
    append_json(text_, digest.hex().substr(0, 16));
  }
  std::string finish() { return text_ + '}'; }

 private:
  std::string text_ = "{";
};

void append_pieces(std::string& out, const Identity::Pieces& pieces) {
  DigestsText code;
  for (const auto& [name, digest] : pieces.functions) code.add(name, digest);
  DigestsText tensors;
  DigestsText attributes;
  for (const auto& attribute : pieces.attributes) {
    (attribute.is_tensor ? tensors : attributes).add(attribute.path, attribute.digest);
  }
  out += ",\"code\":" + code.finish();
  out += ",\"attributes\":" + attributes.finish();
  const std::string of_tensors = tensors.finish();
  if (out.size() + of_tensors.size() < kMostManifestBytes) out += ",\"tensors\":" + of_tensors;
}

bool is_module_with(const c10::ClassType& type, const std::string& method) {
  return type.is_module() && type.findMethod(method) != nullptr;
}

at::Tensor random_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_random_state(const at::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

// Costs little more than the method itself: a name is composed only when a message needs it.
void run_method(torch::jit::Stack& stack, std::size_t arguments, const std::string& name, Want want,
                const Operator& asked) {
  using torch::jit::peek;
  const Method method = method_of(asked.name, peek(stack, 0, arguments), name);
  if (takes_as_it_is(method, peek(stack, 1, arguments))) {
    torch::jit::drop(stack, arguments - 2);
    method.function->run(stack);
  } else {
    at::IValue result = run(method, std::move(peek(stack, 1, arguments)));
    torch::jit::drop(stack, arguments);
    torch::jit::push(stack, std::move(result));
  }
  const at::IValue& result = stack.back();
  if (want == Want::kTensor && !result.isTensor()) {
    Declared{method.called(), nullptr, want, asked}.check_wanted(false, result.tagKind());
  }
}

at::IValue lookup_or_run(const ScriptedCall& scripted, CallKeys keys, bool* are_apart) {
  if (are_apart != nullptr) *are_apart = false;
  Target target(scripted);
  const auto rows = static_cast<std::int64_t>(keys.rows());
  const tensor::Per per = keys.per();
  if (!keys.is_whole()) tensor::check_rows(scripted.input, rows);
  if (rows == 0) return target.run_uncached();
  CallParts parts =
      scripted.cache != nullptr ? CallParts(scripted.cache, scripted.mode) : CallParts();
  if (is_bypassed_by_mode(parts, rows) || !target.prepare(parts, per, rows)) {
    return target.run_uncached();
  }
  Call call(parts, keys);
  Begun begun = call.begin();
  if (begun.value.has_value()) {
    std::string why_apart;
    auto value = target.value_of(*std::move(begun.value), why_apart, are_apart);
    if (value.has_value()) return *std::move(value);
    begun.run = call.reject(why_apart);
  }
  if (begun.run == nullptr) return target.run_uncached();
  return target.make(*begun.run, are_apart);
}

std::string fingerprint(const at::IValue& module, const std::string& method) {
  const ObjectPtr object = method_of("cache::fingerprint", module, method).module;
  const auto fingerprint = identity_of(object, method)->fingerprint(object);
  TORCH_CHECK(!fingerprint.text.empty(), "cache::fingerprint: ", class_name_of(*object),
              " has no fingerprint: ", fingerprint.why_not_hashable);
  return fingerprint.text;
}

std::string refresh_fingerprint(const at::IValue& module) {
  TORCH_CHECK(module.isObject(),
              "cache::refresh_fingerprint: module must be a TorchScript module, got ",
              module.tagKind());
  const ObjectPtr object = module.toObject();
  refresh_identities(object);
  if (object->type()->findMethod("forward") == nullptr) return {};
  return identity_of(object, "forward")->fingerprint(object).text;
}

ScriptedDryRun scripted_dry_run(const at::IValue& module, const std::string& method,
                                const at::IValue& input, tensor::Per per) {
  TORCH_CHECK(module.isObject() && module.toObjectRef().type()->findMethod(method) != nullptr,
              "modcache.explain: module must be a TorchScript module with a method '", method, "'");
  const ObjectPtr object = module.toObject();
  const auto identity = identity_of(object, method);
  const Identity::Refusal refusal = identity->refusal();
  ScriptedDryRun found;
  found.refused_for = refusal.cause;
  found.refusal = refusal.message;
  found.refused_scope = refusal.scope;
  if (!at::GradMode::is_enabled()) return found;
  const tensor::RequiringGrad requiring = identity->requiring_grad(object);
  found.params_grad_pattern = requiring.pattern();
  found.requiring_grad = requiring.count;
  found.gave_grad =
      identity->gave_grad(grad_pattern(requiring.pattern(), tensor::summarize_input(input, per)));
  return found;
}

std::string describe_scripted(const ObjectPtr& module, const std::string& scope,
                              const std::string& method, bool with_weights) {
  const std::string class_name = class_name_of(*module);
  std::string text = "{\"format\":1,";
  append_member(text, "face", "torchscript");
  append_member(text, "scope", scope);
  append_member(text, "class", class_name);
  append_member(text, "method", method);
  append_member(text, "torch", TORCH_VERSION);
  text += "\"created_us\":" + std::to_string(now_us()) + ",\"pid\":" + std::to_string(::getpid());
  if (with_weights) {
    if (const auto pieces = identity_of(module, method)->pieces(module)) {
      append_pieces(text, *pieces);
    }
  }
  return text + '}';
}

ScriptedModule::ScriptedModule(const at::IValue& module)
    : object_([&] {
        TORCH_CHECK(module.isObject(), "modcache: a TorchScript module is expected, got ",
                    module.tagKind());
        return c10::weak_intrusive_ptr<c10::ivalue::Object>(module.toObject());
      }()) {}

bool ScriptedModule::has_method(const std::string& method) const {
  const ObjectPtr module = object();
  return module && is_module_with(*module->type(), method);
}

KeptAttributes::KeptAttributes(const ObjectPtr& module) : random_state_(random_state()) {
  std::unordered_set<const c10::ivalue::Object*> seen;
  std::vector<ObjectPtr> left{module};
  while (!left.empty()) {
    const ObjectPtr object = std::move(left.back());
    left.pop_back();
    if (!seen.insert(object.get()).second) continue;
    for (const at::IValue& value : object->slots()) {
      if (value.isObject()) left.push_back(value.toObject());
    }
    kept_.push_back({object, object->slots()});
  }
}

void KeptAttributes::restore() const {
  set_random_state(random_state_);
  for (const auto& [object, values] : kept_) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!object->getSlot(i).is(values[i])) object->setSlot(i, values[i]);
    }
  }
}

at::IValue load_without_grad(const std::string& path, at::Device device) {
  torch::jit::Module module = torch::jit::load(path, device);
  for (at::Tensor tensor : module.parameters()) tensor.set_requires_grad(false);
  for (at::Tensor tensor : module.buffers()) tensor.set_requires_grad(false);
  return module._ivalue();
}

}  // namespace modcache::module
