// SPDX-License-Identifier: Apache-2.0
//
// Maps the places of the memory tier (cache/place.h) to torch's devices and memory. Without an
// accelerator, "pinned" and "accelerator" mean the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

#include "base/result.h"
#include "cache/place.h"

namespace modcache::tensor {

// Parses "host"; "pinned"; "accelerator", which is this machine's current one; or a device as torch
// writes it: "cuda:1", or "cuda" for the current one. Returns kInvalidArgument when there is no
// such place, or no such device on this machine; the message lists the valid ones.
Result<cache::Place> parse_place(std::string_view text);
// The text that parse_place() parses to `place`.
std::string place_name(const cache::Place& place);

// Returns an uninitialized contiguous tensor in page-locked memory of the host. Where that is not
// available, it uses ordinary memory and logs once.
at::Tensor pinned_tensor(at::IntArrayRef sizes, at::ScalarType dtype);

// Returns a copy on the device that is complete on return. Returns an undefined tensor, and logs
// once, when the device is out of memory or fails. REQUIRES: `tensor` is contiguous and on the
// host.
at::Tensor copy_to_device(const at::Tensor& tensor, const std::string& device);

// Tells torch that the calling thread's current stream reads `tensor`, so that its memory is not
// reused before that is done. Does nothing for a tensor on the host.
void note_use_by_current_stream(const at::Tensor& tensor);

}  // namespace modcache::tensor
