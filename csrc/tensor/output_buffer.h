// SPDX-License-Identifier: Apache-2.0
//
// Reuses memory for the batches that are handed out. Fresh memory is most of the cost of a large
// batch, as the kernel provides it page by page. So a block comes back here when its tensor dies,
// and a loop over batches uses a few blocks in turn.
//
// Thread-safe; usable in a forked child, which has its own copies.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>

namespace modcache::tensor {

// Returns an uninitialized contiguous tensor on the CPU. It belongs to the caller, who may resize
// and write it like any other. REQUIRES: the caller has an OrdinaryTensors guard (storable.h).
at::Tensor output_tensor(at::IntArrayRef sizes, at::ScalarType dtype);

// Returns a tensor over these bytes, which belongs to the caller as well. REQUIRES: as above; there
// are as many bytes as the sizes say, and they may be written to.
at::Tensor output_over(std::shared_ptr<std::byte> bytes, at::IntArrayRef sizes,
                       at::ScalarType dtype);

// Handles results that are small parts of large memory. Their small copies, which are kept, end up
// on the heap where the large memory was, so the next large block of that size needs new memory
// again. A process that keeps a few kilobytes would grow by gigabytes.
// Call it with a result that was copied. When the large blocks behind such results come to 128 MiB,
// it gives the heap's free memory back to the system. Thread-safe.
void note_cut_output(const at::Tensor& result);

}  // namespace modcache::tensor
