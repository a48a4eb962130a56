// SPDX-License-Identifier: Apache-2.0
//
// Lowering, and what lowered graphs consist of (module/lowered/).
#include "needs_torchscript.h"
#include "registration.h"

#if MODCACHE_WITH_TORCHSCRIPT

#include <c10/util/Exception.h>
#include <torch/custom_class.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments.h"
#include "module/lowered/lowered.h"
#include "module/lowered/lowering.h"

namespace modcache::ops {
namespace {

using module::LoweredCall;

using Identity = std::tuple<std::string, std::int64_t, std::int64_t>;

Identity identity(const std::string& recipe, const at::IValue& attributes,
                  const std::string& scope) {
  auto found = module::identify(recipe, attributes, scope.empty());
  return {std::move(found.fingerprint), static_cast<std::int64_t>(found.grad_pattern),
          found.requiring_grad};
}

module::LoweredIdentity identity_of(const at::IValue& tuple) {
  const auto& elements = tuple.toTupleRef().elements();
  return {elements.at(0).toStringRef(), static_cast<std::uint64_t>(elements.at(1).toInt()),
          elements.at(2).toInt()};
}

// The arguments of both forms of a call: scope, identity, method, class name, an opaque object, and
// whether the result is Any. The object holds the input, the key or keys, and a list of the
// result's type.
constexpr std::size_t kArguments = 6;

at::ArrayRef<at::IValue> held_by(const Stack& stack) {
  const auto held = last(stack, kArguments)[4].toCustomClass<module::Opaque>();
  return held->value.toTupleRef().elements();
}

module::LoweredConstants constants_of(const Stack& stack) {
  const auto arguments = last(stack, kArguments);
  const at::IValue& result_type = held_by(stack)[2];
  module::LoweredConstants constants;
  constants.scope = arguments[0].toStringRef();
  constants.identity = identity_of(arguments[1]);
  constants.method = arguments[2].toStringRef();
  constants.class_name = arguments[3].toStringRef();
  constants.declared.who = constants.class_name + "." + constants.method;
  if (result_type.isList()) constants.declared.type = result_type.toList().elementType();
  constants.declared.want = arguments[5].toBool() ? module::Want::kAny : module::Want::kTensor;
  if (!constants.scope.empty()) check_scope("cache::lookup_or_run", constants.scope);
  return constants;
}

void identity_kernel(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = last(*stack, 3);
  auto [fingerprint, pattern, count] =
      identity(arguments[0].toStringRef(), arguments[1], arguments[2].toStringRef());
  replace(*stack, 3, c10::ivalue::Tuple::create(std::move(fingerprint), pattern, count));
}

// The call only keeps TorchScript from folding it.
void identity_of_run(const c10::OperatorHandle& op, Stack* stack) {
  drop(*stack, 1);
  identity_kernel(op, stack);
}

// The call and the moment only keep TorchScript from folding it, and two questions apart.
void state_kernel(const c10::OperatorHandle&, Stack* stack) {
  replace(*stack, 3, module::state_of(last(*stack, 3)[0]));
}

void held(const c10::OperatorHandle&, Stack* stack) {
  replace(*stack, 1, c10::make_intrusive<module::Opaque>(last(*stack, 1)[0]));
}

void lowered_call(const c10::OperatorHandle&, Stack* stack) {
  const auto held = held_by(*stack);
  constexpr const char* kOp = "cache::lookup_or_run";
  if (held[1].isString()) check_key(kOp, held[1].toStringRef());
  module::CallKeys keys = held[1].isString() ? module::CallKeys::whole(held[1].toStringRef())
                                             : checked_keys(kOp, held[1]);
  replace(*stack, kArguments,
          c10::make_intrusive<LoweredCall>(constants_of(*stack), held[0], std::move(keys)));
}

void begin_run(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = last(*stack, 3);
  const auto call = arguments[0].toCustomClass<LoweredCall>();
  replace(*stack, 3,
          call->begin_run(identity_of(arguments[1]).fingerprint,
                          arguments[2].toCustomClass<module::Opaque>()->value));
}

void finish_run(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = last(*stack, 4);
  const auto call = arguments[0].toCustomClass<LoweredCall>();
  call->finish_run(arguments[1].toCustomClass<module::Opaque>()->value,
                   {arguments[2].toInt(), arguments[3].toInt()});
  replace(*stack, 4, call->must_run());
}

void value_of(const c10::OperatorHandle&, Stack* stack) {
  replace(*stack, 1, last(*stack, 1)[0].toCustomClass<LoweredCall>()->value());
}

bool must_run(const c10::intrusive_ptr<LoweredCall>& call) { return call->must_run(); }
bool is_last_run(const c10::intrusive_ptr<LoweredCall>& call) { return call->is_last_run(); }

torch::jit::Module checked_module(const char* op, const at::IValue& module) {
  TORCH_CHECK_TYPE(module.isModule(), op,
                   ": module must be a TorchScript module (torch.jit.script or torch.jit.trace), "
                   "got ",
                   module.tagKind());
  return module.toModule();
}

void lower(const c10::OperatorHandle&, Stack* stack) {
  module::lower(checked_module("cache::lower", last(*stack, 1)[0]));
  drop(*stack, 1);
}

void freeze(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = last(*stack, 3);
  std::vector<std::string> methods;
  for (const at::IValue& name : arguments[1].toListRef()) methods.push_back(name.toStringRef());
  const auto frozen = module::freeze(checked_module("modcache.freeze", arguments[0]), methods,
                                     arguments[2].toBool());
  replace(*stack, 3, frozen._ivalue());
}

void register_graph_operators(torch::Library& m) {
  m.class_<module::Opaque>("Held");
  m.class_<LoweredCall>("LoweredCall");
  const std::string classes = "__torch__.torch.classes.cache.";
  const std::string call = "(" + classes + "LoweredCall call";
  const std::string constants =
      "(str scope, (str, int, int) identity, str method, str class_name, " + classes +
      "Held arguments, bool is_any) -> " + classes;
  const std::string begin = ", (str, int, int) identity, " + classes + "Held kept";
  const std::string run = ", " + classes + "Held result, int before, int after) -> ";

  // These have no effect: TorchScript may fold them.
  constexpr auto kPure = c10::AliasAnalysisKind::FROM_SCHEMA;
  define(m, "_held(Any value) -> " + classes + "Held", boxed<&held>(), kPure);
  define(m, "_identity(str recipe, Any attributes, str scope) -> ((str, int, int))",
         boxed<&identity_kernel>(), kPure);
  define(m,
         "_identity_of_run(str recipe, Any attributes, str scope, Any call) -> ((str, int, int))",
         boxed<&identity_of_run>(), kPure);
  define(m, "_state(Any attributes, Any call, int moment) -> int", boxed<&state_kernel>(), kPure);

  define(m, "_lowered_call" + constants + "LoweredCall", boxed<&lowered_call>());
  define(m, "_must_run" + call + ") -> bool", &must_run);
  define(m, "_begin_run" + call + begin + ") -> Any", boxed<&begin_run>());
  define(m, "_finish_run" + call + run + "bool", boxed<&finish_run>());
  define(m, "_is_last_run" + call + ") -> bool", &is_last_run);
  define(m, "_value_of" + call + ") -> Any", boxed<&value_of>());
}

}  // namespace
}  // namespace modcache::ops

#endif  // MODCACHE_WITH_TORCHSCRIPT

void modcache::ops::register_lowering(torch::Library& m) {
  define(m, "lower(Any module) -> ()", boxed<&MODCACHE_TORCHSCRIPT_KERNEL(lower)>());
  define(m, "_freeze(Any module, str[] methods, bool optimize_numerics) -> Any",
         boxed<&MODCACHE_TORCHSCRIPT_KERNEL(freeze)>());
#if MODCACHE_WITH_TORCHSCRIPT
  register_graph_operators(m);
#endif
}
