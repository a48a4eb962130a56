// SPDX-License-Identifier: Apache-2.0
//
// Addresses a row in a block of rows, and copies the bytes of one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstring>

#include "tensor/torch_version.h"

namespace modcache::tensor {

// REQUIRES: `block` is contiguous, and each of its rows has `size_bytes` bytes.
inline std::byte* row_of(const at::Tensor& block, std::size_t row, std::size_t size_bytes) {
  return mutable_bytes(block) + row * size_bytes;
}

// Both pointers may be null when `size_bytes` is 0, which memcpy does not allow.
inline void copy_bytes(void* target, const void* source, std::size_t size_bytes) {
  if (size_bytes != 0) std::memcpy(target, source, size_bytes);
}

}  // namespace modcache::tensor
