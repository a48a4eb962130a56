// SPDX-License-Identifier: Apache-2.0
#include "module/eager/eager_fast_path.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace modcache::module {

std::optional<at::Tensor> eager_fast_path(const FastCall& call, const EagerWeights& weights) {
  if (!fast_path_is_open()) return std::nullopt;
  const auto requires_grad = [](const at::Tensor& tensor) { return tensor.requires_grad(); };
  if (at::GradMode::is_enabled() &&
      std::any_of(weights.tensors.begin(), weights.tensors.end(), requires_grad)) {
    return std::nullopt;
  }
  auto input = plain_input(call);
  if (!input.has_value()) return std::nullopt;
  if (weights.watch != nullptr && !weights.watch->still_has(weights.tensors, weights.digest)) {
    return std::nullopt;
  }
  return find_on_fast_path(call, *std::move(input));
}

}  // namespace modcache::module
