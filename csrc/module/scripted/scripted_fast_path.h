// SPDX-License-Identifier: Apache-2.0
//
// The fast path (call/fast_path.h) of TorchScript modules, and such a module as Python holds it
// from call to call, so that it need not become an argument of each of them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/custom_class.h>

#include <optional>
#include <string>

#include "module/call/fast_path.h"
#include "module/identity/inventory.h"

namespace modcache::module {

// Uses the module's fingerprint when `call.scope` is empty. Returns nothing also for a module that
// lacks the method, and in a mode in which the fast path is not open.
FastAnswer scripted_fast_path(const ObjectPtr& module, const FastCall& call, cache::Mode mode);

// Does not keep the module alive. Thread-safe.
class ScriptedModule : public torch::CustomClassHolder {
 public:
  // Throws for a value that is not an object.
  explicit ScriptedModule(const at::IValue& module);

  // Returns null for a module that no longer lives.
  ObjectPtr object() const { return object_.lock(); }

  bool has_method(const std::string& method) const;

  // Does as scripted_fast_path(). Returns nothing also for a module that no longer lives.
  FastAnswer fast_path(const FastCall& call) const;

 private:
  const c10::weak_intrusive_ptr<c10::ivalue::Object> object_;
};

}  // namespace modcache::module
