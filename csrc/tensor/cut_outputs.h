// SPDX-License-Identifier: Apache-2.0
//
// Handles results that are small parts of large memory. Their small copies, which are kept, end up
// on the heap where the large memory was, so the next large block of that size needs new memory
// again. A process that keeps a few kilobytes would grow by gigabytes.
#pragma once

#include <ATen/core/Tensor.h>

namespace modcache::tensor {

// Call it with a result that was copied. When the large blocks behind such results come to 128 MiB,
// it gives the heap's free memory back to the system. Thread-safe.
void note_cut_output(const at::Tensor& result);

}  // namespace modcache::tensor
