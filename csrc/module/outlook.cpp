// SPDX-License-Identifier: Apache-2.0
#include "module/outlook.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <utility>

#include "cache/cache.h"
#include "module/identity.h"
#include "tensor/input_sampler.h"

namespace modcache::module {

Outlook look_ahead(CallParts parts, const std::vector<std::string_view>& keys,
                   const std::vector<std::size_t>& rows, const at::IValue& input,
                   std::uint64_t params_grad_pattern) {
  const tensor::Per per = rows.empty() ? tensor::Per::kCall : tensor::Per::kRow;
  Outlook outlook;
  parts.input = tensor::summarize_input(input, per);
  outlook.why_not_cacheable = parts.input.why_not_cacheable;
  outlook.signature = parts.input.signature;
  outlook.entries.resize(keys.size());
  if (!outlook.why_not_cacheable.empty() || parts.scope.empty()) return outlook;
  if (at::GradMode::is_enabled()) {
    parts.grad_pattern = grad_pattern(params_grad_pattern, parts.input);
  }
  outlook.grad_is_unknown = parts.grad_pattern != 0 && !is_known_graph_free(parts);
  const cache::SessionPtr session = cache::Cache::instance().session();
  const cache::Form form = per == tensor::Per::kRow ? cache::Form::kRow : cache::Form::kWhole;
  const cache::ContextPtr context =
      cache::make_context({session->settings().name_space, parts.scope, parts.method, form,
                           parts.input.arguments, parts.arithmetic_state()});
  const tensor::InputSampler sampler(parts.input.tensors, per);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    outlook.entries[i] = session->look(
        {context, keys[i], parts.input.signature, &sampler, rows.empty() ? 0 : rows[i]});
  }
  return outlook;
}

ScriptedOutlook scripted_outlook(const at::IValue& module, const std::string& method,
                                 const at::IValue& input, tensor::Per per) {
  TORCH_CHECK(module.isObject() && module.toObjectRef().type()->findMethod(method) != nullptr,
              "modcache.explain: module must be a TorchScript module with a method '", method, "'");
  const ObjectPtr object = module.toObject();
  const auto identity = identity_of(object, method);
  const Identity::Refusal refusal = identity->refusal();
  ScriptedOutlook outlook;
  outlook.refused_for = refusal.cause;
  outlook.refusal = refusal.message;
  outlook.refused_scope = refusal.scope;
  if (!at::GradMode::is_enabled()) return outlook;
  const Inventory::RequiringGrad requiring = identity->requiring_grad(object);
  outlook.params_grad_pattern = requiring.pattern;
  outlook.requiring_grad = requiring.count;
  outlook.gave_grad =
      identity->gave_grad(grad_pattern(requiring.pattern, tensor::summarize_input(input, per)));
  return outlook;
}

}  // namespace modcache::module
