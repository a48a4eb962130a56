// SPDX-License-Identifier: Apache-2.0
//
// lookup_or_run, lookup_or_run_any and lookup_or_run_file: one key for the whole call, or one per
// row as texts or ids.
#include <string>
#include <utility>

#include "needs_torchscript.h"
#include "registration.h"

#if MODCACHE_WITH_TORCHSCRIPT

#include <c10/util/Exception.h>

#include <algorithm>
#include <vector>

#include "arguments.h"
#include "module/call/module_run.h"
#include "module/file/file_call.h"
#include "module/scripted/scripted.h"

namespace modcache::ops {
namespace {

using module::Want;

const char* name_of(Want want) {
  return want == Want::kTensor ? "cache::lookup_or_run" : "cache::lookup_or_run_any";
}

// The stack's last five: module, input, key or keys, scope, method.
module::ScriptedCall call_on(const Stack& stack, Want want) {
  const auto arguments = last(stack, 5);
  const std::string& scope = arguments[3].toStringRef();
  if (!scope.empty()) check_scope(name_of(want), scope);
  return {arguments[0], arguments[1], scope, arguments[4].toStringRef(), want};
}

void one_key(Stack* stack, Want want) {
  const std::string& key = last(*stack, 5)[2].toStringRef();
  check_key(name_of(want), key);
  module::ScriptedCall call = call_on(*stack, want);
  call.mode = module::mode_of_call(1);
  if (call.mode == cache::Mode::kOff) {
    module::run_method(*stack, 5, call.method, want);
    return;
  }
  at::IValue result = module::lookup_or_run(call, key);
  replace(*stack, 5, std::move(result));
}

// A list whose elements are what one row is.
at::IValue list_of(std::vector<at::IValue> rows) {
  const bool are_tensors =
      std::all_of(rows.begin(), rows.end(), [](const at::IValue& row) { return row.isTensor(); });
  c10::impl::GenericList list(are_tensors ? c10::TypePtr(c10::TensorType::get())
                                          : c10::TypePtr(c10::AnyType::get()));
  for (at::IValue& row : rows) list.push_back(std::move(row));
  return list;
}

void key_per_row(Stack* stack, Want want) {
  module::BatchKeys keys = checked_keys(name_of(want), last(*stack, 5)[2]);
  module::Rows rows = module::lookup_or_run_rows(call_on(*stack, want), std::move(keys));
  replace(*stack, 5, value_of(std::move(rows)));
}

// `arguments`: module or path, input, keys, mask, pad_value, and others.
std::optional<tensor::RowPadding> padding_on(const char* op, std::size_t rows,
                                             c10::ArrayRef<at::IValue> arguments) {
  const std::optional<at::Tensor> mask = arguments[3].toTensor();
  const std::optional<at::Tensor> no_lengths;
  return checked_padding(op, rows, {mask, no_lengths, 0, arguments[4].toDouble()});
}

// The stack's last seven: module, input, keys, mask, pad_value, scope, method.
void key_per_padded_row(Stack* stack, Want want) {
  const auto arguments = last(*stack, 7);
  const std::string& scope = arguments[5].toStringRef();
  if (!scope.empty()) check_scope(name_of(want), scope);
  module::BatchKeys keys = checked_keys(name_of(want), arguments[2]);
  module::ScriptedCall call{arguments[0], arguments[1], scope, arguments[6].toStringRef(), want};
  call.padding = padding_on(name_of(want), keys.rows(), arguments);
  module::Rows rows = module::lookup_or_run_rows(call, std::move(keys));
  replace(*stack, 7, value_of(std::move(rows)));
}

}  // namespace

at::IValue value_of(module::Rows rows) {
  return rows.apart.has_value() ? list_of(*std::move(rows.apart)) : std::move(rows.together);
}

namespace {

void lookup_or_run(const c10::OperatorHandle&, Stack* stack) { one_key(stack, Want::kTensor); }
void lookup_or_run_rows(const c10::OperatorHandle&, Stack* stack) {
  key_per_row(stack, Want::kTensor);
}
void lookup_or_run_any(const c10::OperatorHandle&, Stack* stack) { one_key(stack, Want::kAny); }
void lookup_or_run_any_rows(const c10::OperatorHandle&, Stack* stack) {
  key_per_row(stack, Want::kAny);
}

void lookup_or_run_padded(const c10::OperatorHandle&, Stack* stack) {
  key_per_padded_row(stack, Want::kTensor);
}
void lookup_or_run_any_padded(const c10::OperatorHandle&, Stack* stack) {
  key_per_padded_row(stack, Want::kAny);
}

constexpr const char* kFileOp = "cache::lookup_or_run_file";

// `arguments`: path, input, and others; scope and method are the last.
module::FileCall file_call_of(c10::ArrayRef<at::IValue> arguments) {
  TORCH_CHECK_VALUE(!arguments[0].toStringRef().empty(), kFileOp,
                    ": path is an empty string; name a TorchScript file");
  const std::string& scope = arguments[arguments.size() - 2].toStringRef();
  if (!scope.empty()) check_scope(kFileOp, scope);
  return {arguments[0].toStringRef(), arguments[1], scope, arguments.back().toStringRef()};
}

void lookup_or_run_file(const c10::OperatorHandle&, Stack* stack) {
  const std::string& key = last(*stack, 5)[2].toStringRef();
  check_key(kFileOp, key);
  at::IValue result = module::lookup_or_run_file(file_call_of(last(*stack, 5)), key);
  replace(*stack, 5, std::move(result));
}

void lookup_or_run_file_rows(const c10::OperatorHandle&, Stack* stack) {
  module::BatchKeys keys = checked_keys(kFileOp, last(*stack, 5)[2]);
  module::Rows rows =
      module::lookup_or_run_file_rows(file_call_of(last(*stack, 5)), std::move(keys));
  replace(*stack, 5, value_of(std::move(rows)));
}

// The stack's last seven: path, input, keys, mask, pad_value, scope, method.
void lookup_or_run_file_padded(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = last(*stack, 7);
  module::BatchKeys keys = checked_keys(kFileOp, arguments[2]);
  module::FileCall call = file_call_of(arguments);
  call.padding = padding_on(kFileOp, keys.rows(), arguments);
  module::Rows rows = module::lookup_or_run_file_rows(call, std::move(keys));
  replace(*stack, 7, value_of(std::move(rows)));
}

}  // namespace
}  // namespace modcache::ops

#endif  // MODCACHE_WITH_TORCHSCRIPT

namespace modcache::ops {
namespace {

template <BoxedKernel* one_key, BoxedKernel* key_per_row>
void define_overloads(torch::Library& m, const std::string& name, const std::string& result,
                      const std::string& module = "Any module") {
  const auto schema = [&](const char* overload, const char* keys) {
    return name + overload + "(" + module + ", Any input, " + keys +
           ", *, str scope=\"\", str method=\"forward\") -> " + result;
  };
  define(m, schema("", "str key"), boxed<one_key>());
  define(m, schema(".keys", "str[] keys"), boxed<key_per_row>());
  define(m, schema(".ids", "Tensor ids"), boxed<key_per_row>());
}

// Rows of their own length.
template <BoxedKernel* key_per_row>
void define_padded(torch::Library& m, const std::string& name, const std::string& result,
                   const std::string& module = "Any module") {
  for (const auto& [overload, keys] :
       {std::pair(".keys_mask", "str[] keys"), std::pair(".ids_mask", "Tensor ids")}) {
    define(m,
           name + overload + "(" + module + ", Any input, " + keys +
               ", *, Tensor mask, float pad_value=0., str scope=\"\", str method=\"forward\") -> " +
               result,
           boxed<key_per_row>());
  }
}

}  // namespace

void register_lookup_or_run(torch::Library& m) {
  define_overloads<&MODCACHE_TORCHSCRIPT_KERNEL(lookup_or_run),
                   &MODCACHE_TORCHSCRIPT_KERNEL(lookup_or_run_rows)>(m, "lookup_or_run", "Tensor");
  define_overloads<&MODCACHE_TORCHSCRIPT_KERNEL(lookup_or_run_any),
                   &MODCACHE_TORCHSCRIPT_KERNEL(lookup_or_run_any_rows)>(m, "lookup_or_run_any",
                                                                         "Any");
  define_overloads<&MODCACHE_TORCHSCRIPT_KERNEL(lookup_or_run_file),
                   &MODCACHE_TORCHSCRIPT_KERNEL(lookup_or_run_file_rows)>(m, "lookup_or_run_file",
                                                                          "Tensor", "str path");
  define_padded<&MODCACHE_TORCHSCRIPT_KERNEL(lookup_or_run_padded)>(m, "lookup_or_run", "Tensor");
  define_padded<&MODCACHE_TORCHSCRIPT_KERNEL(lookup_or_run_any_padded)>(m, "lookup_or_run_any",
                                                                        "Any");
  define_padded<&MODCACHE_TORCHSCRIPT_KERNEL(lookup_or_run_file_padded)>(m, "lookup_or_run_file",
                                                                         "Tensor", "str path");
}

}  // namespace modcache::ops
