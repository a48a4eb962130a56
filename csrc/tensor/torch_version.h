// SPDX-License-Identifier: Apache-2.0
//
// What differs between the versions of torch that this is built against: 2.13 to 2.15, and the 1.13
// that Debian 12 packages. No other file asks which torch it has; all ask for what it can do.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/version.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#define MODCACHE_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) ||           \
   (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

// torch.export, and what its operators need: schemas with SymInt, tags, Meta kernels. Without it
// they are not registered, so a program that calls them does not load: torch names the operator.
#define MODCACHE_TORCH_HAS_EXPORT MODCACHE_TORCH_AT_LEAST(2, 13)

// uint16 to uint64, float8, float4 and the sub-byte dtypes. Without them a stored tensor of one is
// an unknown dtype: a miss.
#define MODCACHE_TORCH_HAS_NEW_DTYPES MODCACHE_TORCH_AT_LEAST(2, 13)

// bcomplex32, complex numbers of two bfloat16.
#define MODCACHE_TORCH_HAS_BCOMPLEX MODCACHE_TORCH_AT_LEAST(2, 14)

// Copy-on-write aliases. Without them a hit in memory is a copy, whatever its size.
#define MODCACHE_TORCH_HAS_LAZY_CLONE MODCACHE_TORCH_AT_LEAST(2, 2)

namespace modcache::tensor {

inline constexpr bool kHasLazyClone = MODCACHE_TORCH_HAS_LAZY_CLONE;

// The version that this is built against: "2.13.0".
inline constexpr std::string_view kTorchVersion = TORCH_VERSION;

// The minor version of the torch that this process runs, "2.15"; nothing where torch does not tell,
// as 1.13 does not. It may be another than `kTorchVersion`: a linker is content with any library
// that has the same symbols, though numbers and layouts that were compiled in may have changed.
std::optional<std::string> running_torch();

// Why code that was built against the torch `built` ("2.13.0") may not run in a process that has
// the torch `running` ("2.15"); nothing if it may.
std::optional<std::string> why_not_for_torch(std::string_view built,
                                             const std::optional<std::string>& running);

// A copy of `tensor`: one that takes no time until somebody writes, where torch has it.
at::Tensor lazy_clone(const at::Tensor& tensor);

// The first element's place; null where there is no element. Reading leaves a copy-on-write alias
// an alias, writing does not.
inline const std::byte* const_bytes(const at::Tensor& tensor) {
#if MODCACHE_TORCH_HAS_LAZY_CLONE
  return static_cast<const std::byte*>(tensor.const_data_ptr());
#else
  return static_cast<const std::byte*>(tensor.data_ptr());
#endif
}
inline std::byte* mutable_bytes(const at::Tensor& tensor) {
#if MODCACHE_TORCH_HAS_LAZY_CLONE
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
#else
  return static_cast<std::byte*>(tensor.data_ptr());
#endif
}

// Bits without a meaning, which are no numbers.
bool is_bits_dtype(at::ScalarType type);

// Several numbers in a byte, which no operator takes apart.
bool is_packed_float(at::ScalarType type);

// Python's name of a dtype that only newer versions have.
std::optional<std::string_view> new_dtype_name(at::ScalarType type);

// What autocast makes of floats on such a device; nothing where it is off.
std::optional<at::ScalarType> autocast_dtype(at::DeviceType device);

// Of tensors that stand for others inside a transform (vmap, grad, functionalization).
c10::DispatchKeySet transform_keys();

}  // namespace modcache::tensor
