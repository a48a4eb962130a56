// SPDX-License-Identifier: Apache-2.0
//
// Memory for the batches that are handed out. Fresh memory is most of what a large batch costs
// (the kernel hands it out page by page), so blocks of it come back here when their tensor dies,
// and a loop over batches uses a few of them in turn.
//
// Thread-safe; usable in a forked child, which has its own copies.
#pragma once

#include <ATen/core/Tensor.h>

namespace modcache::tensor {

// An uninitialised contiguous tensor on the CPU, for the caller's own use: it may be resized and
// written like any other.
at::Tensor output_tensor(at::IntArrayRef sizes, at::ScalarType dtype);

}  // namespace modcache::tensor
