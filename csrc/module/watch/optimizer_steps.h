// SPDX-License-Identifier: Apache-2.0
//
// Remembers which tensors an optimizer has stepped, as far as hosts report it (the Python package
// does, for all of torch.optim). Fused optimizers write without counting versions, perhaps to a few
// rows only, and leave no other trace once the gradients are reset.
//
// Thread-safe; usable in a forked child. Keeps no tensor alive: if another tensor gets the same
// address, that costs one needless hashing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace modcache::module {

// Notes that an optimizer has just written these tensors.
void note_optimizer_step(const std::vector<at::Tensor>& stepped);

// Returns the number of steps noted so far. One atomic load.
std::uint64_t optimizer_steps();

// Returns whether `tensor` was stepped after the first `steps` of them.
bool was_stepped_since(std::uint64_t steps, const c10::TensorImpl* tensor);

}  // namespace modcache::module
