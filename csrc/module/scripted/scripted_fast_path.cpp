// SPDX-License-Identifier: Apache-2.0
#include "module/scripted/scripted_fast_path.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>

#include <string>

#include "cache/cache.h"
#include "module/call/declared.h"
#include "module/identity/identity.h"

namespace modcache::module {
namespace {

bool is_module_with(const c10::ClassType& type, const std::string& method) {
  return type.is_module() && type.findMethod(method) != nullptr;
}

bool declares_tensor(const c10::ClassType& type, const std::string& method) {
  const c10::TypePtr declared = declared_type(type, method);
  return declared == nullptr || declared->kind() == c10::TypeKind::TensorType ||
         declared->kind() == c10::TypeKind::AnyType;
}

}  // namespace

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

}  // namespace modcache::module
