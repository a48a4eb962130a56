// SPDX-License-Identifier: Apache-2.0
//
// A TorchScript module as Python holds it from call to call, so that it need not become an argument
// of each of them, and its fast path (call/fast_path.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/custom_class.h>

#include <optional>
#include <string>

#include "module/call/fast_path.h"
#include "module/identity/inventory.h"

namespace modcache::module {

// Does not keep the module alive. Thread-safe.
class ScriptedModule : public torch::CustomClassHolder {
 public:
  // Throws for a value that is not an object.
  explicit ScriptedModule(const at::IValue& module);

  // Returns null for a module that no longer lives.
  ObjectPtr object() const { return object_.lock(); }

  bool has_method(const std::string& method) const;

  // Uses the module's fingerprint when `call.scope` is empty. Returns nothing also for a module
  // that no longer lives or lacks the method.
  std::optional<at::Tensor> fast_path(const FastCall& call) const;

 private:
  const c10::weak_intrusive_ptr<c10::ivalue::Object> object_;
};

}  // namespace modcache::module
