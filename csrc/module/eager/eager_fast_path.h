// SPDX-License-Identifier: Apache-2.0
//
// The fast path (call/fast_path.h) of an eager module, whose state Python has just checked.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "module/call/fast_path.h"
#include "module/watch/watch.h"

namespace modcache::module {

// The weights of the module as Python saw them just now.
struct EagerWeights {
  // All tensors of the module. They are not needed with grad mode off and no watch.
  const std::vector<at::Tensor>& tensors;
  // Null: a name stands for the module. Otherwise the tensors must still have `digest`.
  const Watch* watch;
  const std::string& digest;
};
std::optional<at::Tensor> eager_fast_path(const FastCall& call, const EagerWeights& weights);

}  // namespace modcache::module
