// SPDX-License-Identifier: Apache-2.0
#include "lower.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/custom_class.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments.h"
#include "module/lowered.h"
#include "module/lowering.h"
#include "operators.h"

namespace modcache::ops {
namespace {

using module::LoweredCall;
using module::LoweredRowsCall;
using torch::CppFunction;
using torch::jit::Stack;

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

// What both forms of a call are given: scope, identity, method, class name, what is held, and
// whether the result is Any. Held are input, key or keys, and a list of the result's type.
constexpr std::size_t kArguments = 6;

at::ArrayRef<at::IValue> held_by(const Stack& stack) {
  const auto held = torch::jit::last(stack, kArguments)[4].toCustomClass<module::Held>();
  return held->value.toTupleRef().elements();
}

module::LoweredSite site_of(const Stack& stack) {
  const auto arguments = torch::jit::last(stack, kArguments);
  const at::IValue& result_type = held_by(stack)[2];
  module::LoweredSite site;
  site.scope = arguments[0].toStringRef();
  site.identity = identity_of(arguments[1]);
  site.method = arguments[2].toStringRef();
  site.class_name = arguments[3].toStringRef();
  site.declared.who = site.class_name + "." + site.method;
  if (result_type.isList()) site.declared.type = result_type.toList().elementType();
  site.declared.want = arguments[5].toBool() ? module::Want::kAny : module::Want::kTensor;
  if (!site.scope.empty()) check_scope("cache::lookup_or_run", site.scope);
  return site;
}

template <typename Result>
void replace(Stack* stack, std::size_t arguments, Result&& result) {
  torch::jit::drop(*stack, arguments);
  torch::jit::push(*stack, std::forward<Result>(result));
}

void identity_kernel(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = torch::jit::last(*stack, 3);
  auto [fingerprint, pattern, count] =
      identity(arguments[0].toStringRef(), arguments[1], arguments[2].toStringRef());
  replace(stack, 3, c10::ivalue::Tuple::create(std::move(fingerprint), pattern, count));
}

// The call only keeps TorchScript from folding it.
void identity_of_run(const c10::OperatorHandle& op, Stack* stack) {
  torch::jit::drop(*stack, 1);
  identity_kernel(op, stack);
}

// The call and the moment only keep TorchScript from folding it, and two questions apart.
void state_kernel(const c10::OperatorHandle&, Stack* stack) {
  replace(stack, 3, module::state_of(torch::jit::last(*stack, 3)[0]));
}

void held(const c10::OperatorHandle&, Stack* stack) {
  replace(stack, 1, c10::make_intrusive<module::Held>(torch::jit::last(*stack, 1)[0]));
}

void lowered_call(const c10::OperatorHandle&, Stack* stack) {
  const auto held = held_by(*stack);
  const std::string& key = held[1].toStringRef();
  check_key("cache::lookup_or_run", key);
  replace(stack, kArguments, c10::make_intrusive<LoweredCall>(site_of(*stack), held[0], key));
}

void lowered_rows_call(const c10::OperatorHandle&, Stack* stack) {
  const auto held = held_by(*stack);
  module::BatchKeys keys = checked_keys("cache::lookup_or_run", held[1]);
  replace(stack, kArguments,
          c10::make_intrusive<LoweredRowsCall>(site_of(*stack), held[0], std::move(keys)));
}

void begin_run(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = torch::jit::last(*stack, 3);
  arguments[0].toCustomClass<LoweredCall>()->begin_run(
      identity_of(arguments[1]).fingerprint, arguments[2].toCustomClass<module::Held>()->value);
  torch::jit::drop(*stack, 3);
}

void begin_rows_run(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = torch::jit::last(*stack, 3);
  const auto call = arguments[0].toCustomClass<LoweredRowsCall>();
  replace(stack, 3,
          call->begin_run(identity_of(arguments[1]).fingerprint,
                          arguments[2].toCustomClass<module::Held>()->value));
}

void finish_run(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = torch::jit::last(*stack, 4);
  arguments[0].toCustomClass<LoweredCall>()->finish(
      arguments[1].toCustomClass<module::Held>()->value,
      {arguments[2].toInt(), arguments[3].toInt()});
  torch::jit::drop(*stack, 4);
}

void finish_rows_run(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = torch::jit::last(*stack, 4);
  const auto call = arguments[0].toCustomClass<LoweredRowsCall>();
  call->finish_run(arguments[1].toCustomClass<module::Held>()->value,
                   {arguments[2].toInt(), arguments[3].toInt()});
  replace(stack, 4, call->must_run());
}

void hit(const c10::OperatorHandle&, Stack* stack) {
  replace(stack, 1, torch::jit::last(*stack, 1)[0].toCustomClass<LoweredCall>()->hit());
}

void rows_of(const c10::OperatorHandle&, Stack* stack) {
  const auto call = torch::jit::last(*stack, 1)[0].toCustomClass<LoweredRowsCall>();
  replace(stack, 1, value_of(call->rows()));
}

bool is_hit(const c10::intrusive_ptr<LoweredCall>& call) { return call->is_hit(); }
bool must_run(const c10::intrusive_ptr<LoweredRowsCall>& call) { return call->must_run(); }
bool is_last_run(const c10::intrusive_ptr<LoweredRowsCall>& call) { return call->is_last_run(); }

torch::jit::Module checked_module(const char* op, const at::IValue& module) {
  TORCH_CHECK_TYPE(module.isModule(), op,
                   ": module must be a TorchScript module (torch.jit.script or torch.jit.trace), "
                   "got ",
                   module.tagKind());
  return module.toModule();
}

void lower(const c10::OperatorHandle&, Stack* stack) {
  module::lower(checked_module("cache::lower", torch::jit::last(*stack, 1)[0]));
  torch::jit::drop(*stack, 1);
}

void freeze(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = torch::jit::last(*stack, 3);
  std::vector<std::string> methods;
  for (const at::IValue& name : arguments[1].toListRef()) methods.push_back(name.toStringRef());
  const auto frozen = module::freeze(checked_module("modcache.freeze", arguments[0]), methods,
                                     arguments[2].toBool());
  replace(stack, 3, frozen._ivalue());
}

template <typename Kernel>
void define(torch::Library& library, const std::string& schema, Kernel&& kernel,
            c10::AliasAnalysisKind alias_analysis = c10::AliasAnalysisKind::CONSERVATIVE) {
  library.def(torch::schema(schema.c_str(), alias_analysis), std::forward<Kernel>(kernel));
}

}  // namespace

void define_lower(torch::Library& m) {
  m.class_<module::Held>("Held");
  m.class_<LoweredCall>("LoweredCall");
  m.class_<LoweredRowsCall>("LoweredRowsCall");
  const std::string classes = "__torch__.torch.classes.cache.";
  const std::string call = "(" + classes + "LoweredCall call";
  const std::string rows_call = "(" + classes + "LoweredRowsCall call";
  const std::string site = "(str scope, (str, int, int) identity, str method, str class_name, " +
                           classes + "Held arguments, bool is_any) -> " + classes;
  const std::string begin = ", (str, int, int) identity, " + classes + "Held kept";
  const std::string run = ", " + classes + "Held result, int before, int after) -> ";

  define(m, "lower(Any module) -> ()", CppFunction::makeFromBoxedFunction<&lower>());
  define(m, "_freeze(Any module, str[] methods, bool optimize_numerics) -> Any",
         CppFunction::makeFromBoxedFunction<&freeze>());
  // These have no effect: TorchScript may fold them.
  constexpr auto kPure = c10::AliasAnalysisKind::FROM_SCHEMA;
  define(m, "_held(Any value) -> " + classes + "Held", CppFunction::makeFromBoxedFunction<&held>(),
         kPure);
  define(m, "_identity(str recipe, Any attributes, str scope) -> ((str, int, int))",
         CppFunction::makeFromBoxedFunction<&identity_kernel>(), kPure);
  define(m,
         "_identity_of_run(str recipe, Any attributes, str scope, Any call) -> ((str, int, int))",
         CppFunction::makeFromBoxedFunction<&identity_of_run>(), kPure);
  define(m, "_state(Any attributes, Any call, int moment) -> int",
         CppFunction::makeFromBoxedFunction<&state_kernel>(), kPure);

  define(m, "_lowered_call" + site + "LoweredCall",
         CppFunction::makeFromBoxedFunction<&lowered_call>());
  define(m, "_is_hit" + call + ") -> bool", &is_hit);
  define(m, "_hit" + call + ") -> Any", CppFunction::makeFromBoxedFunction<&hit>());
  define(m, "_begin_run" + call + begin + ") -> ()",
         CppFunction::makeFromBoxedFunction<&begin_run>());
  define(m, "_finish_run" + call + run + "()", CppFunction::makeFromBoxedFunction<&finish_run>());

  define(m, "_lowered_rows_call" + site + "LoweredRowsCall",
         CppFunction::makeFromBoxedFunction<&lowered_rows_call>());
  define(m, "_must_run" + rows_call + ") -> bool", &must_run);
  define(m, "_begin_rows_run" + rows_call + begin + ") -> Any",
         CppFunction::makeFromBoxedFunction<&begin_rows_run>());
  define(m, "_finish_rows_run" + rows_call + run + "bool",
         CppFunction::makeFromBoxedFunction<&finish_rows_run>());
  define(m, "_is_last_run" + rows_call + ") -> bool", &is_last_run);
  define(m, "_rows_of" + rows_call + ") -> Any", CppFunction::makeFromBoxedFunction<&rows_of>());
}

}  // namespace modcache::ops
