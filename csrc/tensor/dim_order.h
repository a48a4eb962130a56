// SPDX-License-Identifier: Apache-2.0
//
// DimOrder: the order of a dense tensor's dimensions in memory, from the outermost to the innermost
// (torch's Tensor.dim_order()). {0, 2, 3, 1} is channels_last. Kernels choose by strides, so the
// last bits of what is computed from a hit depend on it.
//
// The bytes of a stored tensor are its elements in this order, and permuting the tensor by it gives
// one that is row-major. An empty order means row-major.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tensor/value_header.h"

namespace modcache::tensor {

using DimOrder = std::vector<std::uint8_t>;

// Returns the order; empty for a tensor that is row-major, or whose elements overlap or have gaps.
DimOrder dim_order_of(const at::Tensor& tensor);

// Sets the order of `layout`, that of a tensor like `whole`, or of one row of it.
void set_dim_order(TensorLayout& layout, const at::Tensor& whole, bool is_row);

// Returns the orders of a batch of rows with this layout: as the module returned it, and with its
// rows outermost, so that each row's bytes are in one piece. They are equal for most modules.
DimOrder batch_order(const TensorLayout& row);
DimOrder rows_first_order(const TensorLayout& row);

// Returns the sizes of a tensor after it was permuted by `order`.
std::vector<std::int64_t> permuted(const std::vector<std::int64_t>& sizes, const DimOrder& order);
// Returns a set of dimensions, as bits, after that.
std::uint64_t permuted(std::uint64_t dims, const DimOrder& order);

// Return a view of `tensor`, permuted by the order and back.
at::Tensor in_memory_order(const at::Tensor& tensor, const DimOrder& order);
at::Tensor in_logical_order(const at::Tensor& tensor, const DimOrder& order);

// Permutes a tensor back by changing its own sizes and strides, so that it is no view. REQUIRES: it
// is row-major, and the caller's own.
void restore_logical_order(const at::Tensor& tensor, const DimOrder& order);

// Returns a row-major tensor with these elements, where it stands in `from`, in the order `to`: the
// same memory where both are equal. REQUIRES: as restore_logical_order.
at::Tensor reordered(const at::Tensor& tensor, const DimOrder& from, const DimOrder& to);

}  // namespace modcache::tensor
