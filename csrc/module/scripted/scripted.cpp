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
#include "module/call/declared.h"
#include "module/call/manifest.h"
#include "module/call/module_run.h"
#include "module/call/rows_call.h"
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

Method method_of(const char* op, at::IValue module, const std::string& name) {
  Method method;
  if (module.isObject()) {
    method.type = module.toObjectRef().type();
    if (method.type->is_module()) method.function = method.type->findMethod(name);
  }
  if (method.function == nullptr) refuse_method(op, module, name);
  method.module = std::move(module).toObject();
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
  explicit Target(const ScriptedCall& call)
      : call_(call), declared_{name_of(call) + "." + call.method, nullptr, call.want, call.asked} {
    if (call.unloaded == nullptr) take(call.module);
  }

  // Returns what the call is looked up under; nothing when it is to be run uncached. Then it was
  // counted, once for each of its rows. REQUIRES: the mode does not bypass the call.
  std::optional<CallParts> prepare(tensor::Per per, std::int64_t rows) {
    CallParts parts;
    parts.class_name = name_of(call_);
    parts.method = counted_name(call_.method);
    parts.padding = call_.padding;
    parts.is_ragged = call_.is_ragged;
    const tensor::RowPadding* const padding = parts.padding.has_value() ? &*parts.padding : nullptr;
    if (!read_input(parts, tensor::summarize_input(call_.input, per, padding), rows)) {
      return std::nullopt;
    }
    if (module_ == nullptr) return parts_of_unloaded(std::move(parts));
    identity_ = identity_of(module_, call_.method);
    if (at::GradMode::is_enabled()) {
      parts.grad_pattern = grad_pattern(identity_->requiring_grad(module_).pattern(), parts.input);
    }
    grad_pattern_ = parts.grad_pattern;
    // After a result with a graph the module is in training, so it is run without a fingerprint. If
    // this run gives no graph, later calls are fingerprinted again.
    if (identity_->gave_grad(parts.grad_pattern)) return parts;
    parts.scope = call_.scope;
    if (!parts.scope.empty()) return parts;
    Identity::Fingerprint fingerprint = identity_->fingerprint(module_);
    if (fingerprint.text.empty()) {
      refuse_unidentified(parts, rows, fingerprint.why_not_hashable);
      return std::nullopt;
    }
    parts.scope = fingerprint_ = std::move(fingerprint.text);
    weights_ = std::move(fingerprint.weights);
    return parts;
  }

  at::IValue run_uncached() {
    load();
    at::IValue result = run(method_, call_.input);
    declared_.check_wanted(result.isTensor(), result.tagKind());
    return result;
  }

  // Runs the module for a Call or a RowsCall.
  template <typename AnyCall>
  at::IValue run_observed(const at::IValue& input, AnyCall& call) {
    load();
    // All runs of a call are stored under the state that the module had before the first of them.
    if (before_ == nullptr) {
      before_ = identity_->observe(module_);
      // The call may have waited for another thread's run since the module was identified.
      if (!fingerprint_.empty()) {
        Identity::Fingerprint now = identity_->fingerprint(module_);
        is_another_ = now.text != fingerprint_;
        // Null when the module was loaded for this run.
        if (weights_ == nullptr) weights_ = std::move(now.weights);
      }
    }
    call.begin_run();
    at::IValue result = run(method_, input);
    RunFacts facts;
    facts.weights = weights_;
    if (is_another_) {
      facts.impure_because =
          "weights of " + class_name_of(*module_) + " changed while the call waited";
    } else if (auto changed = Identity::changed_since(*before_, module_)) {
      facts.impure_because =
          *changed + " of " + class_name_of(*module_) + " changed during the run";
    }
    declared_.check_wanted(result.isTensor(), result.tagKind());
    tensor::Flat flat = tensor::flatten(result);
    const bool has_graph = flat.requires_grad();
    facts.is_scripted = true;
    facts.is_training = is_training(*module_);
    if (has_graph) facts.requiring_grad = identity_->requiring_grad(module_).count;
    call.finish_run(std::move(flat), facts);
    note(call.outcome());
    if (grad_pattern_ != 0) identity_->note_gave_grad(grad_pattern_, has_graph);
    return result;
  }

  // Runs made rows, to see whether the result of a RowsCall consists of rows.
  void run_check(const RowCheck& check, RowsCall& call) {
    call.finish_check(run_unseen([&] { return check_input(call_.input, check); }));
    note(call.outcome());
  }

  // Runs one row once more, for a RowsCall whose rows have lengths of their own.
  void run_trial(const PaddingTrial& trial, RowsCall& call) {
    std::optional<tensor::Flat> tried;
    // A method of TorchScript declares all that it takes.
    if (trial.kind != PaddingTrial::Kind::kUnused) {
      tried = run_unseen([&] {
        return tensor::one_row_of_length(call_.input, trial.row, *call_.padding, trial.length,
                                         trial.kept);
      });
    }
    call.finish_trial(tried);
    note(call.outcome());
  }

  const Declared& declared() const { return declared_; }

 private:
  // Runs the module on another input. It keeps no trace of that. Nothing: it raised.
  template <typename MakeInput>
  std::optional<tensor::Flat> run_unseen(const MakeInput& make_input) {
    const KeptAttributes kept(module_);
    std::optional<tensor::Flat> output;
    try {
      // A cache inside must not take these rows for those that their keys name.
      const cache::ModeGuard off(cache::Mode::kOff);
      output = tensor::flatten(run(method_, make_input()));
    } catch (const std::exception&) {  // the module may not take such an input
      output.reset();
    }
    kept.restore();
    return output;
  }

  static std::string name_of(const ScriptedCall& call) {
    return call.unloaded != nullptr ? call.unloaded->name
           : call.module.isObject() ? class_name_of(call.module.toObjectRef())
                                    : "module";
  }

  void take(const at::IValue& module) {
    method_ = method_of(call_.asked.name, module, call_.method);
    module_ = method_.module;
    declared_ = {method_.called(), declared_type(*method_.type, call_.method), call_.want,
                 call_.asked};
  }

  void load() {
    if (module_ != nullptr) return;
    take(call_.unloaded->load());
    identity_ = identity_of(module_, call_.method);
  }

  CallParts parts_of_unloaded(CallParts parts) {
    parts.grad_pattern = grad_pattern(0, parts.input);
    grad_pattern_ = parts.grad_pattern;
    if (call_.scope.empty()) fingerprint_ = call_.unloaded->fingerprint;
    parts.scope = call_.scope.empty() ? fingerprint_ : call_.scope;
    return parts;
  }

  // Remembers what explain() will report.
  void note(const Outcome& outcome) {
    const std::string& scope = fingerprint_.empty() ? call_.scope : fingerprint_;
    identity_->note_refusal({outcome.refused_for, outcome.refusal, scope});
    if (!outcome.has_stored || !lacks_manifest(scope)) return;
    put_manifest(scope, class_name_of(*module_), call_.method,
                 describe_scripted(module_, scope, call_.method, !fingerprint_.empty()));
  }

  const ScriptedCall& call_;
  Method method_;
  ObjectPtr module_;  // the module of method_; null: not loaded yet
  Declared declared_;
  std::shared_ptr<Identity> identity_;
  std::shared_ptr<const Inventory> before_;
  std::string fingerprint_;  // empty: the scope was given
  std::shared_ptr<const WatchedContents> weights_;
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

bool declares_tensor(const c10::ClassType& type, const std::string& method) {
  const c10::TypePtr declared = declared_type(type, method);
  return declared == nullptr || declared->kind() == c10::TypeKind::TensorType ||
         declared->kind() == c10::TypeKind::AnyType;
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

namespace {

// Returns a plain hit in memory. A miss on this way costs a small part of what a run does.
FastAnswer find_in_memory(const ScriptedCall& call, const std::string& key) {
  if (call.is_no_plain_hit || call.unloaded != nullptr || !call.module.isObject()) return {};
  try {
    const cache::Mode mode = call.mode.has_value() ? *call.mode : cache::Cache::instance().mode();
    return scripted_fast_path(call.module.toObject(),
                              {call.scope, call.method, call.input, key, /*rows=*/nullptr,
                               /*looks_on_disk=*/false},
                              mode);
  } catch (const std::exception&) {  // it is met again, and reported, on the way of every call
    return {};
  }
}

}  // namespace

at::IValue lookup_or_run(const ScriptedCall& scripted, const std::string& key) {
  FastAnswer fast = find_in_memory(scripted, key);
  if (fast.value.has_value()) return *std::move(fast.value);
  Target target(scripted);
  if (fast.is_bypassed || is_bypassed_by_mode(1)) return target.run_uncached();
  auto parts = target.prepare(tensor::Per::kCall, 1);
  if (!parts.has_value()) return target.run_uncached();
  Call call(*std::move(parts), key);
  if (const auto hit = call.lookup()) {
    auto value = target.declared().value_of(*hit, call.parts().input.device);
    if (value.has_value()) return *std::move(value);
    call.reject_hit();
  }
  if (call.is_bypassed()) return target.run_uncached();
  return target.run_observed(scripted.input, call);
}

Rows lookup_or_run_rows(const ScriptedCall& scripted, BatchKeys keys) {
  Target target(scripted);
  const auto count = static_cast<std::int64_t>(keys.rows());
  tensor::check_rows(scripted.input, count);
  if (count == 0 || is_bypassed_by_mode(count)) return {target.run_uncached(), {}};
  auto parts = target.prepare(tensor::Per::kRow, count);
  if (!parts.has_value()) return {target.run_uncached(), {}};
  RowsCall call(*std::move(parts), std::move(keys));
  while (true) {
    at::IValue own;
    bool is_whole = false;
    while (const auto rows = call.next_rows()) {
      if (call.is_bypassed()) return {target.run_uncached(), {}};
      is_whole = call.is_whole_input(*rows);
      own = target.run_observed(
          is_whole ? scripted.input : tensor::select_rows(scripted.input, *rows), call);
      while (const auto check = call.next_check()) target.run_check(*check, call);
      while (const auto trial = call.next_trial()) target.run_trial(*trial, call);
    }
    // The module's own result has the declared type already.
    if (is_whole && call.gives_own_result()) return {std::move(own), {}};
    if (auto rows = target.declared().rows_of(call)) return *std::move(rows);
    if (is_whole) return {std::move(own), {}};
    call.reject_hits();
  }
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

FastAnswer ScriptedModule::fast_path(const FastCall& call) const {
  const ObjectPtr module = object();
  if (!module) return {};
  return scripted_fast_path(module, call, cache::Cache::instance().mode());
}

FastAnswer scripted_fast_path(const ObjectPtr& module, const FastCall& call, cache::Mode mode) {
  if (!fast_path_is_open(mode)) return {};
  const c10::ClassTypePtr type = module->type();
  if (!is_module_with(*type, call.method) || !declares_tensor(*type, call.method)) {
    return {};
  }
  auto input = plain_input(call);
  if (!input.has_value()) return {};
  const auto identity = identity_of(module, call.method);
  if (at::GradMode::is_enabled() && identity->requiring_grad(module).count != 0) {
    return {};
  }
  if (!call.scope.empty()) return find_on_fast_path(call, *std::move(input), mode);
  const std::string fingerprint = identity->fingerprint(module).text;
  if (fingerprint.empty()) return {};
  return find_on_fast_path(
      {fingerprint, call.method, call.input, call.key, call.rows, call.looks_on_disk},
      *std::move(input), mode);
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
