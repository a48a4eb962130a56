// SPDX-License-Identifier: Apache-2.0
//
// The way of a TorchScript module through a Call.
#include <ATen/core/grad_mode.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/api/module.h>

#include <utility>
#include <vector>

#include "base/log.h"
#include "module/call.h"
#include "module/identity.h"

namespace modcache::module {
namespace {

using cache::Counter;

std::string class_name_of(const ObjectPtr& module) {
  return module->type()->name().has_value() ? module->type()->name()->name() : "module";
}

ObjectPtr check_module(const char* op, const at::IValue& module, const std::string& method) {
  TORCH_CHECK(module.isObject() && module.toObjectRef().type()->is_module(), op,
              ": module must be a TorchScript module (torch.jit.script or "
              "torch.jit.trace), got ",
              module.tagKind(), module.isObject() ? " of a class that is no module" : "");
  ObjectPtr object = module.toObject();
  if (object->type()->findMethod(method) == nullptr) {
    std::string known;
    for (const auto* function : object->type()->methods()) {
      known += (known.empty() ? "" : ", ") + function->name();
    }
    TORCH_CHECK(false, op, ": ", class_name_of(object), " has no method '", method,
                "'; it has: ", known.empty() ? "none" : known,
                ". Freezing a model removes the methods of its submodules; keep the submodule "
                "with torch.jit.freeze(model, preserved_attrs=[...])");
  }
  return object;
}

at::IValue run(const ObjectPtr& module, const std::string& method, const at::IValue& input) {
  std::vector<at::IValue> arguments;
  if (input.isTuple()) {
    const auto& elements = input.toTupleRef().elements();
    arguments.assign(elements.begin(), elements.end());
  } else {
    arguments.push_back(input);
  }
  torch::jit::Module runnable(module);
  // As a call of the module does: TorchScript's own hooks run around forward.
  const auto type = module->type();
  const bool has_hooks = !type->getForwardPreHooks().empty() || !type->getForwardHooks().empty();
  if (method == "forward" && has_hooks) return runnable(std::move(arguments));
  return runnable.get_method(method)(std::move(arguments));
}

std::uint64_t grad_pattern_of(Identity& identity, const ObjectPtr& module,
                              const tensor::InputSummary& input) {
  if (!at::GradMode::is_enabled()) return 0;
  const std::uint64_t of_module = identity.requiring_grad(module).pattern;
  if (of_module == 0 && !input.any_requires_grad) return 0;
  const std::uint64_t both = of_module * 31 + input.requires_grad_pattern;
  return both == 0 ? 1 : both;
}

at::Tensor run_and_finish(Call& call, Identity& identity, const ObjectPtr& module,
                          const std::string& method, const at::IValue& input) {
  const auto before = identity.observe(module);
  call.begin_run();
  const at::IValue result = run(module, method, input);
  std::string impure_because;
  if (auto changed = Identity::changed_since(*before, module)) {
    impure_because = *changed + " of " + class_name_of(module) + " changed during the run";
  }
  const bool has_grad = result.isTensor() && result.toTensor().requires_grad();
  return call.finish(result, impure_because, has_grad ? identity.requiring_grad(module).count : 0);
}

at::Tensor run_uncached(const ObjectPtr& module, const std::string& method, const at::IValue& input,
                        Counter counter) {
  cache::Cache::instance().counters().add(counter);
  at::IValue result = run(module, method, input);
  TORCH_CHECK(result.isTensor(), "cache::lookup_or_run: ", class_name_of(module), ".", method,
              " returned ", result.tagKind(),
              ", but this operator caches one Tensor; use cache::lookup_or_run_any for structured "
              "results");
  return std::move(result).toTensor();
}

void warn_not_cacheable(const std::string& class_name, const std::string& method, const char* cause,
                        const std::string& because) {
  auto& cache = cache::Cache::instance();
  const std::string message = class_name + "." + method + " is not cached: " + because;
  TORCH_CHECK(!cache.session()->settings().strict, "modcache (strict=true): ", message);
  log_once(LogLevel::kWarning, std::string(cause) + ':' + class_name + ':' + method, message);
}

}  // namespace

at::Tensor lookup_or_run(const at::IValue& module_value, const at::IValue& input,
                         const std::string& key, const std::string& scope,
                         const std::string& method) {
  const ObjectPtr module = check_module("cache::lookup_or_run", module_value, method);
  if (!may_read(cache::Cache::instance().mode())) {
    return run_uncached(module, method, input, Counter::kBypassedOff);
  }
  CallParts parts;
  parts.input = tensor::summarize_input(input);
  parts.class_name = class_name_of(module);
  if (!parts.input.why_not_cacheable.empty()) {
    warn_not_cacheable(
        parts.class_name, method, "input",
        "its input holds a tensor or value that is " + parts.input.why_not_cacheable);
    return run_uncached(module, method, input, Counter::kBypassedType);
  }
  const auto identity = identity_of(module, method);
  parts.grad_pattern = grad_pattern_of(*identity, module, parts.input);
  parts.scope = scope;
  // After a result with a graph the module is in training: it is run first and, should it give
  // no graph this time, is fingerprinted again from the next call on.
  const bool expects_grad = identity->gave_grad(parts.grad_pattern);
  if (scope.empty() && !expects_grad) {
    Identity::Fingerprint fingerprint = identity->fingerprint(module);
    if (fingerprint.text.empty()) {
      warn_not_cacheable(parts.class_name, method, "identity",
                         fingerprint.why_not_hashable + "; give it a scope=\"name@version\"");
      return run_uncached(module, method, input, Counter::kBypassedImpure);
    }
    parts.scope = std::move(fingerprint.text);
  } else if (expects_grad) {
    parts.scope.clear();
  }
  parts.method = method;
  parts.key = key;
  const std::uint64_t grad_pattern = parts.grad_pattern;
  Call call(std::move(parts));
  if (auto hit = call.lookup()) return *std::move(hit);
  at::Tensor result = run_and_finish(call, *identity, module, method, input);
  if (grad_pattern != 0) identity->note_gave_grad(grad_pattern, result.requires_grad());
  return result;
}

std::string fingerprint(const at::IValue& module, const std::string& method) {
  const ObjectPtr object = check_module("cache::fingerprint", module, method);
  const auto fingerprint = identity_of(object, method)->fingerprint(object);
  TORCH_CHECK(!fingerprint.text.empty(), "cache::fingerprint: ", class_name_of(object),
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

}  // namespace modcache::module
