// SPDX-License-Identifier: Apache-2.0
#include "module/scripted/scripted_dry_run.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include "module/call/module_run.h"
#include "module/identity/identity.h"

namespace modcache::module {

ScriptedDryRun scripted_dry_run(const at::IValue& module, const std::string& method,
                                const at::IValue& input, tensor::Per per) {
  TORCH_CHECK(module.isObject() && module.toObjectRef().type()->findMethod(method) != nullptr,
              "modcache.explain: module must be a TorchScript module with a method '", method, "'");
  const ObjectPtr object = module.toObject();
  const auto identity = identity_of(object, method);
  const Identity::Refusal refusal = identity->refusal();
  ScriptedDryRun found;
  found.refused_for = refusal.cause;
  found.refusal = refusal.message;
  found.refused_scope = refusal.scope;
  if (!at::GradMode::is_enabled()) return found;
  const tensor::RequiringGrad requiring = identity->requiring_grad(object);
  found.params_grad_pattern = requiring.pattern();
  found.requiring_grad = requiring.count;
  found.gave_grad =
      identity->gave_grad(grad_pattern(requiring.pattern(), tensor::summarize_input(input, per)));
  return found;
}

}  // namespace modcache::module
