// SPDX-License-Identifier: Apache-2.0
#include "module/call/dry_run.h"

#include <string>
#include <utility>

#include "module/call/call.h"
#include "module/call/rules.h"
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
  const tensor::InputSampler sampler = sampler_of(parts, per);
  cache::Keys all(parts.context(per), keys);
  all.configuration = parts.configuration;
  all.signature = parts.input.signature;
  all.input = &sampler;
  all.input_rows = rows;
  all.form = per == tensor::Per::kRow ? cache::Form::kRow : cache::Form::kWhole;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    found.signatures.push_back(
        padding == nullptr
            ? parts.input.signature
            : tensor::signature_of_length(parts.input.signature, padding->lengths[rows[i]]));
  }
  if (padding != nullptr) {
    all.signatures.assign(found.signatures.begin(), found.signatures.end());
  }
  found.entries = parts.cache->inspect(all);
  return found;
}

}  // namespace modcache::module
