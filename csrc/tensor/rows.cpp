// SPDX-License-Identifier: Apache-2.0
#include "tensor/rows.h"

#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <sstream>

#include "tensor/dim_order.h"
#include "tensor/storable.h"

namespace modcache::tensor {

at::Tensor select_rows(const at::Tensor& tensor, const std::vector<std::int64_t>& rows) {
  const at::Tensor index = at::tensor(rows, at::kLong).to(tensor.device());
  const DimOrder order = dim_order_of(tensor);
  const auto batch = std::find(order.begin(), order.end(), 0) - order.begin();
  const at::Tensor selected = in_logical_order(
      at::index_select(in_memory_order(as_operable(tensor), order), batch, index), order);
  return selected.scalar_type() == tensor.scalar_type() ? selected
                                                        : selected.view(tensor.scalar_type());
}

at::IValue select_rows(const at::IValue& input, const std::vector<std::int64_t>& rows) {
  return with_tensors(input, [&](const at::Tensor& tensor) { return select_rows(tensor, rows); });
}

std::string why_no_rows(const Flat& result, std::int64_t rows) {
  if (result.tensors.empty()) return "no tensor";
  for (const at::Tensor& tensor : result.tensors) {
    if (tensor.dim() > 0 && tensor.size(0) == rows) continue;
    std::ostringstream text;
    text << "a tensor of shape " << tensor.sizes();
    return text.str();
  }
  return {};
}

}  // namespace modcache::tensor
