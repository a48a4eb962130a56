// SPDX-License-Identifier: Apache-2.0
//
// Outputs that are small parts of large memory: what is kept of them is a copy, which the heap puts
// where the large one was, so that the next of its size needs new memory again. A process that
// holds a few kilobytes would grow by gigabytes.
#pragma once

#include <ATen/core/Tensor.h>

namespace modcache::tensor {

// To be called for a result of which a copy was made. Gives free memory of the heap back to the
// system whenever the large rests of such results come to 128 MiB. Thread-safe.
void note_cut_output(const at::Tensor& result);

}  // namespace modcache::tensor
