// SPDX-License-Identifier: Apache-2.0
//
// TorchScript modules: their fingerprints, and what Python asks of one from call to call.
#include <torch/custom_class.h>

#include <string>

#include "needs_torchscript.h"
#include "registration.h"

#if MODCACHE_WITH_TORCHSCRIPT

#include <c10/util/Exception.h>

#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>

#include "arguments.h"
#include "module/identity/identity.h"
#include "module/scripted/scripted.h"

namespace modcache::ops {
namespace {

using module::ScriptedModule;
using ScriptedPtr = c10::intrusive_ptr<ScriptedModule>;

constexpr const char* kLookupOrRunScripted = "modcache.lookup_or_run";

void fingerprint(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = last(*stack, 2);
  std::string text = module::fingerprint(arguments[0], arguments[1].toStringRef());
  replace(*stack, 2, std::move(text));
}

void refresh_fingerprint(const c10::OperatorHandle&, Stack* stack) {
  std::string text = module::refresh_fingerprint(last(*stack, 1)[0]);
  replace(*stack, 1, std::move(text));
}

module::ObjectPtr living(const ScriptedModule& module) {
  module::ObjectPtr object = module.object();
  TORCH_CHECK(object.defined(), "modcache: a TorchScript module that is asked about was freed");
  return object;
}

// lookup_or_run_any with one key per row. Tells rows that do not fit together (true) from a list
// that the module returned. The arguments are those of the schema.
// NOLINTNEXTLINE(readability-function-size)
std::tuple<bool, at::IValue> scripted_rows(const ScriptedPtr& module, const at::IValue& input,
                                           const std::optional<c10::List<std::string>>& texts,
                                           const std::optional<at::Tensor>& ids,
                                           const std::string& scope, const std::string& method,
                                           const std::optional<at::Tensor>& mask,
                                           const std::optional<at::Tensor>& lengths,
                                           std::int64_t longest, double pad_value) {
  module::CallKeys keys = checked_keys(kLookupOrRunScripted, texts, ids);
  if (!scope.empty()) check_scope("cache::lookup_or_run_any", scope);
  const at::IValue object(living(*module));
  module::ScriptedCall call{object, input, scope, method, module::Want::kAny};
  call.is_ragged = longest < 0;
  call.padding = checked_padding(kLookupOrRunScripted, keys.rows(),
                                 {mask, lengths, std::max<std::int64_t>(longest, 0), pad_value});
  bool are_apart = false;
  at::IValue value = module::lookup_or_run(call, std::move(keys), &are_apart);
  return {are_apart, std::move(value)};
}

std::string describe(const ScriptedPtr& module, const std::string& scope, const std::string& method,
                     bool with_weights) {
  return module::describe_scripted(living(*module), scope, method, with_weights);
}

// For explain(): the pattern and number of tensors that require grad, whether the last result had a
// graph, and why, with which message and in which scope the last one was refused.
std::tuple<std::int64_t, std::int64_t, bool, std::string, std::string, std::string> dry_run(
    const ScriptedPtr& module, const std::string& method, const at::IValue& input, bool is_rows) {
  const auto per = is_rows ? tensor::Per::kRow : tensor::Per::kCall;
  const module::ScriptedDryRun found =
      module::scripted_dry_run(at::IValue(living(*module)), method, input, per);
  return {static_cast<std::int64_t>(found.params_grad_pattern),
          found.requiring_grad,
          found.gave_grad,
          found.refused_for,
          found.refusal,
          found.refused_scope};
}

void register_scripted_class(torch::Library& m) {
  m.class_<ScriptedModule>("ScriptedModule")
      .def(torch::init<at::IValue>())
      .def("address",
           [](const ScriptedPtr& module) {
             return static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(module.get()));
           })
      .def_static("rows", &scripted_rows)
      .def("describe", &describe)
      .def("dry_run", &dry_run);
}

}  // namespace

std::shared_ptr<const module::TensorWatch> weights_of_scripted(const at::IValue& module,
                                                               const std::string& method) {
  return module::identity_of(module.toObject(), method)->fingerprint(module.toObject()).weights;
}

}  // namespace modcache::ops

#else

namespace modcache::ops {
namespace {

// No module has a fingerprint, which is what the empty text says.
void refresh_fingerprint(const c10::OperatorHandle&, Stack* stack) {
  replace(*stack, 1, std::string());
}

struct ScriptedModule : torch::CustomClassHolder {
  explicit ScriptedModule(const at::IValue&) { refuse_torchscript("modcache.lookup_or_run"); }
};

void register_scripted_class(torch::Library& m) {
  m.class_<ScriptedModule>("ScriptedModule").def(torch::init<at::IValue>()).def_static("rows", [] {
  });
}

}  // namespace

std::shared_ptr<const module::TensorWatch> weights_of_scripted(const at::IValue&,
                                                               const std::string&) {
  refuse_torchscript("modcache.lookup_or_run");
}

}  // namespace modcache::ops

#endif  // MODCACHE_WITH_TORCHSCRIPT

void modcache::ops::register_scripted(torch::Library& m) {
  define(m, "fingerprint(Any module, *, str method=\"forward\") -> str",
         boxed<&MODCACHE_TORCHSCRIPT_KERNEL(fingerprint)>());
  define(m, "refresh_fingerprint(Any module) -> str", boxed<&refresh_fingerprint>());
  register_scripted_class(m);
}
