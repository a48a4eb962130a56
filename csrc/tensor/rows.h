// SPDX-License-Identifier: Apache-2.0
//
// Selects rows from the tensors of a batch.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tensor/torch_version.h"
#include "tensor/tree.h"

namespace modcache::tensor {

// Returns the given rows of a tensor of any dtype, on its device and in the same order of
// dimensions in memory. REQUIRES: it has a first dimension.
at::Tensor select_rows(const at::Tensor& tensor, const std::vector<std::int64_t>& rows);
// Does the same for every tensor in an input; other values stay as they are.
at::IValue select_rows(const at::IValue& input, const std::vector<std::int64_t>& rows);

// Returns why `result` cannot be a module's result for `rows` rows; empty when it can. The text
// completes "it returned ...".
std::string why_no_rows(const Flat& result, std::int64_t rows);

// Addresses a row in a block of rows, and copies the bytes of one.
// REQUIRES: `block` is contiguous, and each of its rows has `size_bytes` bytes.
inline std::byte* row_of(const at::Tensor& block, std::size_t row, std::size_t size_bytes) {
  return mutable_bytes(block) + row * size_bytes;
}

// Both pointers may be null when `size_bytes` is 0, which memcpy does not allow.
inline void copy_bytes(void* target, const void* source, std::size_t size_bytes) {
  if (size_bytes != 0) std::memcpy(target, source, size_bytes);
}

}  // namespace modcache::tensor
