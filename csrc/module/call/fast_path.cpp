// SPDX-License-Identifier: Apache-2.0
#include "module/call/fast_path.h"

#include <ATen/core/grad_mode.h>

#include "cache/cache.h"
#include "tensor/input_sampler.h"
#include "tensor/whole_value.h"

namespace modcache::module {
namespace {

const tensor::WholeValue& value_of(const cache::Entry& entry) {
  return static_cast<const tensor::WholeValue&>(*entry.value);
}

}  // namespace

bool fast_path_is_open() {
  const cache::Mode mode = cache::Cache::instance().mode();
  return cache::may_read(mode) && !cache::always_runs(mode);
}

std::optional<tensor::InputSummary> plain_input(const at::Tensor& input) {
  if (at::GradMode::is_enabled() && input.requires_grad()) return std::nullopt;
  tensor::InputSummary summary = tensor::summarize_input(input);
  if (!summary.why_not_cacheable.empty()) return std::nullopt;
  return summary;
}

std::optional<at::Tensor> find_on_fast_path(const FastCall& call,
                                            const tensor::InputSummary& input) {
  const auto session = cache::Cache::instance().session();
  const auto context =
      cache::make_context({session->settings().name_space, call.scope, call.method,
                           cache::Form::kWhole, input.arguments, tensor::arithmetic_state()});
  const tensor::InputSampler sampler(input.tensors, tensor::Per::kCall);
  const cache::EntryPtr entry = session->find_in_memory(
      {context, call.key, input.signature, &sampler, /*row=*/0},
      [](const cache::Entry& found) { return value_of(found).is_lone_tensor(); });
  if (entry == nullptr) return std::nullopt;
  return value_of(*entry).hand_out_tensor(input.device);
}

}  // namespace modcache::module
