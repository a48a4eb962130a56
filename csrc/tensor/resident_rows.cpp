// SPDX-License-Identifier: Apache-2.0
#include "tensor/resident_rows.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "tensor/dim_order.h"
#include "tensor/placement.h"
#include "tensor/storable.h"

namespace modcache::tensor {
namespace {

bool fit_together(const RowValue& row, const RowValue& first) {
  if (row.on_device().device() != first.on_device().device()) return false;
  if (&row.layout() == &first.layout()) return true;
  if (!row.layout().has_rows_like(first.layout())) return false;
  for (std::size_t i = 0; i < row.layout().places().size(); ++i) {
    if (row.layout().places()[i].stored_dtype != first.layout().places()[i].stored_dtype ||
        !row.layout().tensors()[i].has_order_of(first.layout().tensors()[i])) {
      return false;
    }
  }
  return true;
}

// Returns tensor `i` of all rows, in its original dtype.
at::Tensor tensors_together(const std::vector<std::shared_ptr<const RowValue>>& rows,
                            std::size_t i) {
  const Layout& layout = rows[0]->layout();
  const Layout::Place& place = layout.places()[i];
  std::vector<std::int64_t> sizes{static_cast<std::int64_t>(rows.size())};
  const auto& of_row = place.sizes;
  sizes.insert(sizes.end(), of_row.begin(), of_row.end());
  if (place.size_bytes == 0) {
    const auto options = rows[0]->on_device().options().dtype(place.stored_dtype);
    return at::empty(sizes, options).to(place.dtype);
  }
  std::vector<at::Tensor> bytes;
  bytes.reserve(rows.size());
  for (const auto& row : rows) {
    bytes.push_back(row->on_device().narrow(0, static_cast<std::int64_t>(place.offset),
                                            static_cast<std::int64_t>(place.size_bytes)));
  }
  // Copies a single row too, as the caller may write into the result but not into the tier's row.
  const at::Tensor together = bytes.size() == 1 ? bytes[0].clone() : at::cat(bytes);
  return together.view(place.stored_dtype).view(sizes).to(place.dtype);
}

}  // namespace

std::optional<Flat> together_on_device(const std::vector<std::shared_ptr<const RowValue>>& rows,
                                       std::optional<at::Device> input_device) {
  const RowValue& first = *rows[0];
  const bool fit = std::all_of(rows.begin(), rows.end(),
                               [&](const auto& row) { return fit_together(*row, first); });
  if (!fit) return std::nullopt;
  OrdinaryTensors ordinary;
  for (const auto& row : rows) note_use_by_current_stream(row->on_device());
  Flat together{first.layout().root(), {}, {}};
  for (std::size_t i = 0; i < first.layout().places().size(); ++i) {
    const bool goes_to_input = first.layout().tensors()[i].is_beside_input;
    const at::Device target =
        goes_to_input && input_device.has_value() ? *input_device : at::Device(at::kCPU);
    const TensorLayout& layout = first.layout().tensors()[i];
    const at::Tensor tensor = tensors_together(rows, i).to(target);
    together.tensors.push_back(reordered(tensor, rows_first_order(layout), batch_order(layout)));
  }
  return together;
}

}  // namespace modcache::tensor
