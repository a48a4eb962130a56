// SPDX-License-Identifier: Apache-2.0
//
// The differences between the versions of torch that this is built against, 2.13 to 2.15. No other
// file asks for the version; all others ask what this torch can do.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/version.h>

#include <cstddef>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

// bcomplex32, complex numbers of two bfloat16.
#define MODCACHE_TORCH_HAS_BCOMPLEX \
  (TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 14))

namespace modcache::tensor {

// The version that this is built against: "2.13.0".
inline constexpr std::string_view kTorchVersion = TORCH_VERSION;

// The minor version of the torch that this process runs, "2.15"; nullopt where torch does not tell.
// It may differ from `kTorchVersion`: a linker accepts any library that has the same symbols,
// though numbers and layouts that were compiled in may have changed.
std::optional<std::string> running_torch();

// Returns why code that was built against the torch `built` ("2.13.0") may not run in a process
// that has the torch `running` ("2.15"); nothing if it may.
std::optional<std::string> why_not_for_torch(std::string_view built,
                                             const std::optional<std::string>& running);

// Returns a copy of `tensor`, which takes no time until somebody writes (copy-on-write).
at::Tensor lazy_clone(const at::Tensor& tensor);

// Return the address of the first element; null when there is no element. Reading keeps a
// copy-on-write alias, writing turns it into a copy.
inline const std::byte* const_bytes(const at::Tensor& tensor) {
  return static_cast<const std::byte*>(tensor.const_data_ptr());
}
inline std::byte* mutable_bytes(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

// Returns whether the dtype is one of torch's "bits" types, which are not numbers.
bool is_bits_dtype(at::ScalarType type);

// Returns whether the dtype packs several numbers into a byte, which no operator unpacks.
bool is_packed_float(at::ScalarType type);

// Returns Python's name of a dtype that only newer versions have.
std::optional<std::string_view> new_dtype_name(at::ScalarType type);

// Returns the kind of accelerator that torch pins memory for; it may have no device.
std::optional<at::DeviceType> accelerator_of_torch();

// Returns the kinds of devices that this torch has autocast for, or none where it is off for all of
// them in the calling thread. Addresses depend on the order: CPU, CUDA, XPU, then the others.
c10::ArrayRef<at::DeviceType> autocast_devices();

// Returns the dtype to which autocast casts floats on such a device; nothing where it is off.
std::optional<at::ScalarType> autocast_dtype(at::DeviceType device);

// Returns the keys of tensors that stand for others inside a transform (vmap, grad,
// functionalization).
c10::DispatchKeySet transform_keys();

// Returns whether a mode of torch functions or of torch dispatch, a transform of functorch or
// tracing is in force in the calling thread.
bool is_mode_in_force();

// The message of an exception without the stack trace that torch's own append, for log lines and
// statuses.
std::string text_of(const std::exception& error);

}  // namespace modcache::tensor
