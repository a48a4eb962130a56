// SPDX-License-Identifier: Apache-2.0
//
// Which tensors an optimizer has stepped, as far as hosts say so (the Python package does, for all
// of torch.optim). Fused optimizers write without counting versions, perhaps to a few rows only,
// and leave no other trace once the gradients are reset.
//
// Thread-safe; usable in a forked child. Keeps no tensor alive: an address that comes back under
// another tensor costs one needless hashing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace modcache::module {

void note_optimizer_step(const std::vector<at::Tensor>& stepped);

// How many steps were noted so far. One atomic load.
std::uint64_t optimizer_steps();

// Whether `tensor` was stepped after `steps` of them.
bool was_stepped_since(std::uint64_t steps, const c10::TensorImpl* tensor);

}  // namespace modcache::module
