// SPDX-License-Identifier: Apache-2.0
//
// lookup_or_run and lookup_or_run_any: one key for the whole call, or one per row as texts or ids.
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "module/as_loaded.h"
#include "module/file_call.h"
#include "module/model_file.h"
#include "module/module_run.h"
#include "module/scripted.h"
#include "operators.h"

namespace modcache::ops {
namespace {

using module::Want;
using torch::jit::Stack;

const char* name_of(Want want) {
  return want == Want::kTensor ? "cache::lookup_or_run" : "cache::lookup_or_run_any";
}

// The stack's last five: module, input, key or keys, scope, method.
module::ScriptedCall call_on(const Stack& stack, Want want) {
  const auto arguments = torch::jit::last(stack, 5);
  const std::string& scope = arguments[3].toStringRef();
  if (!scope.empty()) check_scope(name_of(want), scope);
  return {arguments[0], arguments[1], scope, arguments[4].toStringRef(), want};
}

void one_key(Stack* stack, Want want) {
  const std::string& key = torch::jit::last(*stack, 5)[2].toStringRef();
  check_key(name_of(want), key);
  const module::ScriptedCall call = call_on(*stack, want);
  if (module::is_bypassed_by_mode(1)) {
    module::run_method(*stack, 5, call.method, want);
    return;
  }
  at::IValue result = module::lookup_or_run(call, key);
  torch::jit::drop(*stack, 5);
  torch::jit::push(*stack, std::move(result));
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
  module::BatchKeys keys = checked_keys(name_of(want), torch::jit::last(*stack, 5)[2]);
  module::Rows rows = module::lookup_or_run_rows(call_on(*stack, want), std::move(keys));
  torch::jit::drop(*stack, 5);
  torch::jit::push(*stack, value_of(std::move(rows)));
}

}  // namespace

at::IValue value_of(module::Rows rows) {
  return rows.apart.has_value() ? list_of(*std::move(rows.apart)) : std::move(rows.together);
}

void lookup_or_run(const c10::OperatorHandle&, Stack* stack) { one_key(stack, Want::kTensor); }
void lookup_or_run_rows(const c10::OperatorHandle&, Stack* stack) {
  key_per_row(stack, Want::kTensor);
}
void lookup_or_run_any(const c10::OperatorHandle&, Stack* stack) { one_key(stack, Want::kAny); }
void lookup_or_run_any_rows(const c10::OperatorHandle&, Stack* stack) {
  key_per_row(stack, Want::kAny);
}

namespace {

constexpr const char* kFileOp = "cache::lookup_or_run_file";

// The stack's last five: path, input, key or keys, scope, method.
module::FileCall file_call_on(const Stack& stack) {
  const auto arguments = torch::jit::last(stack, 5);
  TORCH_CHECK_VALUE(!arguments[0].toStringRef().empty(), kFileOp,
                    ": path is an empty string; name a TorchScript file");
  const std::string& scope = arguments[3].toStringRef();
  if (!scope.empty()) check_scope(kFileOp, scope);
  return {arguments[0].toStringRef(), arguments[1], scope, arguments[4].toStringRef()};
}

}  // namespace

void lookup_or_run_file(const c10::OperatorHandle&, Stack* stack) {
  const std::string& key = torch::jit::last(*stack, 5)[2].toStringRef();
  check_key(kFileOp, key);
  at::IValue result = module::lookup_or_run_file(file_call_on(*stack), key);
  torch::jit::drop(*stack, 5);
  torch::jit::push(*stack, std::move(result));
}

void lookup_or_run_file_rows(const c10::OperatorHandle&, Stack* stack) {
  module::BatchKeys keys = checked_keys(kFileOp, torch::jit::last(*stack, 5)[2]);
  module::Rows rows = module::lookup_or_run_file_rows(file_call_on(*stack), std::move(keys));
  torch::jit::drop(*stack, 5);
  torch::jit::push(*stack, value_of(std::move(rows)));
}

std::string file_digest(const std::string& path) {
  const auto file = module::model_file(path);
  check_ok("modcache.lazy", file.status());
  const auto digest = file.value()->digest();
  check_ok("modcache.lazy", digest.status());
  return digest.value();
}

void as_loaded(const c10::OperatorHandle&, Stack* stack) {
  auto observed = c10::make_intrusive<module::AsLoaded>(torch::jit::pop(*stack).toObject());
  torch::jit::push(*stack, std::move(observed));
}

void fingerprint_as_loaded(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = torch::jit::last(*stack, 3);
  std::string text = arguments[0].toCustomClass<module::AsLoaded>()->fingerprint(
      arguments[1].toObject(), arguments[2].toStringRef());
  torch::jit::drop(*stack, 3);
  torch::jit::push(*stack, std::move(text));
}

void scripted_rows(const c10::OperatorHandle&, Stack* stack) {
  module::BatchKeys keys = checked_keys("modcache.lookup_or_run", torch::jit::last(*stack, 5)[2]);
  module::Rows rows = module::lookup_or_run_rows(call_on(*stack, Want::kAny), std::move(keys));
  torch::jit::drop(*stack, 5);
  const bool is_apart = rows.apart.has_value();
  torch::jit::push(*stack, is_apart);
  torch::jit::push(*stack, value_of(std::move(rows)));
}

}  // namespace modcache::ops
