// SPDX-License-Identifier: Apache-2.0
//
// Reuses memory for the batches that are handed out. Fresh memory is most of the cost of a large
// batch, as the kernel provides it page by page. So a block comes back here when its tensor dies,
// and a loop over batches uses a few blocks in turn.
//
// Thread-safe; usable in a forked child, which has its own copies.
#pragma once

#include <ATen/core/Tensor.h>

namespace modcache::tensor {

// Returns an uninitialized contiguous tensor on the CPU. It belongs to the caller, who may resize
// and write it like any other.
at::Tensor output_tensor(at::IntArrayRef sizes, at::ScalarType dtype);

}  // namespace modcache::tensor
