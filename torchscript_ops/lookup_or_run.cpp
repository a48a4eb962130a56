// SPDX-License-Identifier: Apache-2.0
//
// lookup_or_run, lookup_or_run_any and lookup_or_run_file: one key for the whole call, or one per
// row as texts or ids.
#include <string>
#include <utility>

#include "module/call/current_cache.h"
#include "needs_torchscript.h"
#include "registration.h"

#if MODCACHE_WITH_TORCHSCRIPT

#include <c10/util/Exception.h>

#include <cstddef>
#include <optional>

#include "arguments.h"
#include "module/file/file_call.h"
#include "module/scripted/scripted.h"

namespace modcache::ops {
namespace {

using module::Want;

constexpr std::size_t kPlainArguments = 5;
constexpr std::size_t kPaddedArguments = 7;

const char* name_of(Want want) {
  return want == Want::kTensor ? "cache::lookup_or_run" : "cache::lookup_or_run_any";
}

// `key`: a text, or the keys of rows. Borrows a text.
module::CallKeys keys_of(const char* op, const at::IValue& key) {
  if (!key.isString()) return checked_keys(op, key);
  check_key(op, key.toStringRef());
  return module::CallKeys::whole(key.toStringRef());
}

// `arguments`: module or path, input, keys, mask, pad_value, and others.
std::optional<tensor::RowPadding> padding_on(const char* op, std::size_t rows,
                                             c10::ArrayRef<at::IValue> arguments) {
  const std::optional<at::Tensor> mask = arguments[3].toTensor();
  const std::optional<at::Tensor> no_lengths;
  return checked_padding(op, rows, {mask, no_lengths, 0, arguments[4].toDouble()});
}

// The stack's last `count`: module, input, key or keys, (mask, pad_value,) scope, method.
void call_module(Stack* stack, std::size_t count, Want want) {
  const auto arguments = last(*stack, count);
  const std::string& scope = arguments[count - 2].toStringRef();
  module::CallKeys keys = keys_of(name_of(want), arguments[2]);
  if (!scope.empty()) check_scope(name_of(want), scope);
  module::ScriptedCall call{arguments[0], arguments[1], scope, arguments[count - 1].toStringRef(),
                            want};
  call.cache = module::current_cache();
  call.mode = call.cache->mode();
  if (call.mode == cache::Mode::kOff && keys.is_whole()) {
    call.cache->counters().add(cache::Counter::kBypassedOff);
    return module::run_method(*stack, count, call.method, want);
  }
  if (count > kPlainArguments) call.padding = padding_on(name_of(want), keys.rows(), arguments);
  at::IValue result = module::lookup_or_run(call, std::move(keys));
  replace(*stack, count, std::move(result));
}

void lookup_or_run(const c10::OperatorHandle&, Stack* stack) {
  call_module(stack, kPlainArguments, Want::kTensor);
}
void lookup_or_run_any(const c10::OperatorHandle&, Stack* stack) {
  call_module(stack, kPlainArguments, Want::kAny);
}
void lookup_or_run_padded(const c10::OperatorHandle&, Stack* stack) {
  call_module(stack, kPaddedArguments, Want::kTensor);
}
void lookup_or_run_any_padded(const c10::OperatorHandle&, Stack* stack) {
  call_module(stack, kPaddedArguments, Want::kAny);
}

constexpr const char* kFileOp = "cache::lookup_or_run_file";

void call_file(Stack* stack, std::size_t count) {
  const auto arguments = last(*stack, count);
  TORCH_CHECK_VALUE(!arguments[0].toStringRef().empty(), kFileOp,
                    ": path is an empty string; name a TorchScript file");
  module::CallKeys keys = keys_of(kFileOp, arguments[2]);
  const std::string& scope = arguments[count - 2].toStringRef();
  if (!scope.empty()) check_scope(kFileOp, scope);
  module::FileCall call{arguments[0].toStringRef(), arguments[1], scope,
                        arguments[count - 1].toStringRef()};
  if (count > kPlainArguments) call.padding = padding_on(kFileOp, keys.rows(), arguments);
  at::IValue result = module::lookup_or_run_file(call, std::move(keys));
  replace(*stack, count, std::move(result));
}

void lookup_or_run_file(const c10::OperatorHandle&, Stack* stack) {
  call_file(stack, kPlainArguments);
}
void lookup_or_run_file_padded(const c10::OperatorHandle&, Stack* stack) {
  call_file(stack, kPaddedArguments);
}

}  // namespace
}  // namespace modcache::ops

#endif  // MODCACHE_WITH_TORCHSCRIPT

namespace modcache::ops {
namespace {

template <BoxedKernel* kernel, BoxedKernel* padded>
void define_overloads(torch::Library& m, const std::string& name, const std::string& result,
                      const std::string& module = "Any module") {
  const auto schema = [&](const char* overload, const char* keys, const char* padding = "") {
    return name + overload + "(" + module + ", Any input, " + keys + ", *, " + padding +
           "str scope=\"\", str method=\"forward\") -> " + result;
  };
  constexpr const char* kPadding = "Tensor mask, float pad_value=0., ";
  define(m, schema("", "str key"), boxed<kernel>());
  define(m, schema(".keys", "str[] keys"), boxed<kernel>());
  define(m, schema(".ids", "Tensor ids"), boxed<kernel>());
  define(m, schema(".keys_mask", "str[] keys", kPadding), boxed<padded>());
  define(m, schema(".ids_mask", "Tensor ids", kPadding), boxed<padded>());
}

}  // namespace

void register_lookup_or_run(torch::Library& m) {
  define_overloads<&MODCACHE_TORCHSCRIPT_KERNEL(lookup_or_run),
                   &MODCACHE_TORCHSCRIPT_KERNEL(lookup_or_run_padded)>(m, "lookup_or_run",
                                                                       "Tensor");
  define_overloads<&MODCACHE_TORCHSCRIPT_KERNEL(lookup_or_run_any),
                   &MODCACHE_TORCHSCRIPT_KERNEL(lookup_or_run_any_padded)>(m, "lookup_or_run_any",
                                                                           "Any");
  define_overloads<&MODCACHE_TORCHSCRIPT_KERNEL(lookup_or_run_file),
                   &MODCACHE_TORCHSCRIPT_KERNEL(lookup_or_run_file_padded)>(m, "lookup_or_run_file",
                                                                            "Tensor", "str path");
}

}  // namespace modcache::ops
