// SPDX-License-Identifier: Apache-2.0
//
// What the places of the memory tier (cache/place.h) are to torch: which there are on this machine,
// and tensors in them. Without an accelerator, "pinned" and "accelerator" mean the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

#include "base/result.h"
#include "cache/place.h"

namespace modcache::tensor {

// "host"; "pinned"; "accelerator", which is this machine's current one; or a device as torch writes
// it, "cuda:1", "cuda" for the current one. kInvalidArgument: no such place, or no such device
// here; the message names what is valid.
Result<cache::Place> parse_place(std::string_view text);
// As parse_place() takes it.
std::string place_name(const cache::Place& place);

// An uninitialised contiguous tensor of the host in page-locked memory; in ordinary memory where
// none can be had, which is logged once.
at::Tensor pinned_tensor(at::IntArrayRef sizes, at::ScalarType dtype);

// A copy there that is complete when this returns. Undefined, and logged once, where the device has
// no room or fails. REQUIRES: `tensor` is contiguous and on the host.
at::Tensor copy_to_device(const at::Tensor& tensor, const std::string& device);

// The calling thread's current stream reads `tensor`, whose memory is not given to others before.
// Nothing for a tensor of the host.
void note_use_by_current_stream(const at::Tensor& tensor);

}  // namespace modcache::tensor
