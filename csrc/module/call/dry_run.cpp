// SPDX-License-Identifier: Apache-2.0
#include "module/call/dry_run.h"

#include <string>
#include <utility>

#include "cache/cache.h"
#include "module/call/open_call.h"
#include "tensor/input_sampler.h"

namespace modcache::module {

DryRun dry_run(CallParts parts, const std::vector<std::string_view>& keys,
               const std::vector<std::size_t>& rows, const at::IValue& input,
               std::uint64_t params_grad_pattern) {
  const tensor::Per per = rows.empty() ? tensor::Per::kCall : tensor::Per::kRow;
  DryRun found;
  const tensor::RowPadding* const padding = parts.padding.has_value() ? &*parts.padding : nullptr;
  parts.input = tensor::summarize_input(input, per, padding);
  found.why_not_cacheable = parts.input.why_not_cacheable;
  found.entries.resize(keys.size());
  if (!found.why_not_cacheable.empty() || parts.scope.empty()) return found;
  parts.grad_pattern = grad_pattern(params_grad_pattern, parts.input);
  found.grad_is_unknown = is_grad_unknown(parts);
  const cache::SessionPtr session = cache::Cache::instance().session();
  const cache::ContextPtr context = context_of(*session, parts, per);
  const tensor::InputSampler sampler = sampler_of(parts, per);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::size_t row = rows.empty() ? 0 : rows[i];
    const std::string signature =
        padding == nullptr
            ? parts.input.signature
            : tensor::signature_of_length(parts.input.signature, padding->lengths[row]);
    found.entries[i] = session->look({context, keys[i], signature, &sampler, row});
    found.signatures.push_back(signature);
  }
  return found;
}

}  // namespace modcache::module
