// SPDX-License-Identifier: Apache-2.0
#include "tensor/dim_order.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "tensor/storable.h"

namespace modcache::tensor {
namespace {

bool is_row_major(const DimOrder& order) { return std::is_sorted(order.begin(), order.end()); }

// Nearly every tensor has these strides, and they are told without allocations.
bool has_row_major_strides(const at::Tensor& tensor) {
  std::int64_t stride = 1;
  for (std::int64_t i = tensor.dim() - 1; i >= 0; --i) {
    if (tensor.stride(i) != stride) return false;
    stride *= tensor.size(i);
  }
  return true;
}

// Returns the strides of a dense tensor.
std::vector<std::int64_t> strides_of(at::IntArrayRef sizes, const DimOrder& order) {
  std::vector<std::int64_t> strides(order.size());
  std::int64_t stride = 1;
  for (auto place = order.rbegin(); place != order.rend(); ++place) {
    strides[*place] = stride;
    stride *= sizes[*place];
  }
  return strides;
}

std::vector<std::int64_t> places_of(const DimOrder& order) { return {order.begin(), order.end()}; }

std::vector<std::int64_t> inverse_of(const DimOrder& order) {
  std::vector<std::int64_t> inverse(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) inverse[order[i]] = static_cast<std::int64_t>(i);
  return inverse;
}

DimOrder without_row_major(const DimOrder& order) {
  return is_row_major(order) ? DimOrder{} : order;
}

}  // namespace

DimOrder dim_order_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0 || has_row_major_strides(tensor)) return {};
  if (!tensor.is_non_overlapping_and_dense()) return {};
  const at::IntArrayRef sizes = tensor.sizes();
  const at::IntArrayRef strides = tensor.strides();
  DimOrder order(sizes.size());
  std::iota(order.begin(), order.end(), std::uint8_t{0});
  // Among equal strides a dimension of size 1 lies inside the other one, which has that stride
  // because nothing is inside it but 1.
  std::sort(order.begin(), order.end(), [&](std::uint8_t a, std::uint8_t b) {
    if (strides[a] != strides[b]) return strides[a] > strides[b];
    return sizes[a] != sizes[b] ? sizes[a] > sizes[b] : a < b;
  });
  // A dimension of size 1 may have any stride. Where such strides say nothing, the tensor is taken
  // for what torch's kernels take it for.
  if (strides_of(sizes, order) != strides && tensor.is_contiguous()) return {};
  return without_row_major(order);
}

void set_dim_order(TensorLayout& layout, const at::Tensor& whole, bool is_row) {
  DimOrder order = dim_order_of(whole);
  if (order.empty() || !is_row) {
    layout.dim_order = std::move(order);
    return;
  }
  const auto batch = std::find(order.begin(), order.end(), 0);
  layout.batch_place = static_cast<std::uint8_t>(batch - order.begin());
  order.erase(batch);
  for (std::uint8_t& dimension : order) --dimension;
  layout.dim_order = without_row_major(order);
}

DimOrder rows_first_order(const TensorLayout& row) {
  if (row.dim_order.empty()) return {};
  DimOrder order{0};
  for (const std::uint8_t dimension : row.dim_order) {
    order.push_back(static_cast<std::uint8_t>(dimension + 1));
  }
  return order;
}

DimOrder batch_order(const TensorLayout& row) {
  DimOrder order = rows_first_order(row);
  if (row.batch_place == 0) return order;
  if (order.empty()) {
    order.resize(row.sizes.size() + 1);
    std::iota(order.begin(), order.end(), std::uint8_t{0});
  }
  std::rotate(order.begin(), order.begin() + 1, order.begin() + row.batch_place + 1);
  return order;
}

std::vector<std::int64_t> permuted(const std::vector<std::int64_t>& sizes, const DimOrder& order) {
  if (order.empty()) return sizes;
  std::vector<std::int64_t> result;
  result.reserve(sizes.size());
  for (const std::uint8_t dimension : order) result.push_back(sizes[dimension]);
  return result;
}

std::uint64_t permuted(std::uint64_t dims, const DimOrder& order) {
  if (order.empty()) return dims;
  std::uint64_t result = 0;
  for (std::size_t i = 0; i < order.size(); ++i) result |= ((dims >> order[i]) & 1) << i;
  return result;
}

at::Tensor in_memory_order(const at::Tensor& tensor, const DimOrder& order) {
  return order.empty() ? tensor : tensor.permute(places_of(order));
}

at::Tensor in_logical_order(const at::Tensor& tensor, const DimOrder& order) {
  return order.empty() ? tensor : tensor.permute(inverse_of(order));
}

void restore_logical_order(const at::Tensor& tensor, const DimOrder& order) {
  if (order.empty()) return;
  std::vector<std::int64_t> sizes(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    sizes[order[i]] = tensor.size(static_cast<std::int64_t>(i));
  }
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides_of(sizes, order));
}

at::Tensor reordered(const at::Tensor& tensor, const DimOrder& from, const DimOrder& to) {
  if (from == to) {
    restore_logical_order(tensor, to);
    return tensor;
  }
  const at::Tensor logical = in_logical_order(tensor, from);
  at::Tensor made = at::empty(permuted(logical.sizes().vec(), to), logical.options());
  restore_logical_order(made, to);
  as_operable(made).copy_(as_operable(logical));
  return made;
}

}  // namespace modcache::tensor
