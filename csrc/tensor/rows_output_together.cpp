// SPDX-License-Identifier: Apache-2.0
//
// RowsOutput: returning its rows, together or one by one.
#include <ATen/ops/cat.h>
#include <ATen/ops/clone.h>

#include <algorithm>
#include <utility>

#include "tensor/difference.h"
#include "tensor/dim_order.h"
#include "tensor/row_bytes.h"
#include "tensor/rows.h"
#include "tensor/rows_output.h"
#include "tensor/storable.h"
#include "tensor/torch_version.h"

namespace modcache::tensor {
namespace {

// Other batches may compute a constant with other roundings.
Tolerance tolerance_of_constant(const at::Tensor& tensor) {
  return {tensor.element_size() < 4 ? 1e-2 : 1e-4, 0};
}

bool is_on_cpu(const Flat& value) {
  return std::all_of(value.tensors.begin(), value.tensors.end(), [](const at::Tensor& tensor) {
    return tensor.device().is_cpu() && !tensor.requires_grad();
  });
}

// Returns a tensor whose memory is its rows one after another, each in the order that `row` says.
at::Tensor rows_in_memory(const at::Tensor& tensor, const TensorLayout& row) {
  const at::Tensor rows = in_memory_order(tensor.detach(), rows_first_order(row));
  return has_plain_memory(rows) ? rows : copy_to_store(rows, cache::StoredDtype::kKeep);
}

bool have_rows_alike(const Flat& a, const Flat& b) {
  if (a.root != b.root || a.tensors.size() != b.tensors.size()) return false;
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    if (a.tensors[i].scalar_type() != b.tensors[i].scalar_type() ||
        a.tensors[i].sizes().slice(1) != b.tensors[i].sizes().slice(1)) {
      return false;
    }
  }
  return true;
}

// Does what reordered() does, with operators that autograd follows.
at::Tensor in_batch_order(const at::Tensor& rows, const TensorLayout& layout) {
  const DimOrder order = batch_order(layout);
  const at::Tensor logical = in_logical_order(rows, rows_first_order(layout));
  return layout.batch_place == 0
             ? logical
             : in_logical_order(in_memory_order(logical, order).contiguous(), order);
}

}  // namespace

bool RowsOutput::do_computed_fit() const {
  for (const Computed& computed : computed_) {
    if (!have_rows_alike(computed.result, computed_[0].result)) return false;
    if (layout_ != nullptr && !has_rows_of_the_layout(computed.result)) return false;
  }
  return true;
}

bool RowsOutput::has_rows_of_the_layout(const Flat& result) const {
  if (result.root != layout_->root() || result.tensors.size() != block_.size()) return false;
  for (std::size_t i = 0; i < block_.size(); ++i) {
    if (result.tensors[i].scalar_type() != layout_->places()[i].dtype ||
        result.tensors[i].sizes().slice(1) != row_sizes(i)) {
      return false;
    }
  }
  return true;
}

// Returns the layout that the rows of the result are to have.
TensorLayout RowsOutput::row_layout(std::size_t i) const {
  if (layout_ != nullptr) {
    TensorLayout layout = layout_->tensors()[i];
    layout.sizes = row_sizes(i);
    return layout;
  }
  const at::Tensor& first = computed_[0].result.tensors[i];
  TensorLayout layout;
  layout.sizes = first.sizes().slice(1).vec();
  set_dim_order(layout, first, /*is_row=*/true);
  return layout;
}

bool RowsOutput::has_odd_stored_rows() const {
  if (stored_.empty()) return false;
  if (!computed_.empty() && constants_ != layout_->row_marks().constants) return true;
  for (const Single& single : singles_) {
    if (!single.layout->has_rows_of_the_kind_of(*layout_)) return true;
  }
  for (const Computed& computed : computed_) {
    const Flat& result = computed.result;
    if (!result.root.has_form_of(layout_->root())) return true;
    for (std::size_t i = 0; i < result.tensors.size(); ++i) {
      const bool is_alike = result.tensors[i].scalar_type() == layout_->places()[i].dtype &&
                            result.tensors[i].dim() == static_cast<std::int64_t>(block_[i].dim());
      if (!is_alike) return true;
    }
  }
  return false;
}

void RowsOutput::copy_repeated() {
  for (const at::Tensor& tensor : block_) {
    const std::size_t size_bytes = rows_ == 0 ? 0 : tensor.nbytes() / rows_;
    for (const auto& [row, same_as] : repeated_) {
      copy_bytes(row_of(tensor, row, size_bytes), row_of(tensor, same_as, size_bytes), size_bytes);
    }
  }
}

Flat RowsOutput::copied_on_cpu() {
  OrdinaryTensors ordinary;
  Flat together;
  together.root = layout_ != nullptr ? layout_->root() : computed_[0].result.root;
  std::vector<TensorLayout> layouts;
  for (std::size_t i = 0; i < computed_[0].result.tensors.size(); ++i) {
    layouts.push_back(row_layout(i));
    if (layout_ != nullptr) continue;
    std::vector<std::int64_t> sizes = permuted(layouts[i].sizes, layouts[i].dim_order);
    sizes.insert(sizes.begin(), static_cast<std::int64_t>(rows_));
    block_.push_back(room(sizes, computed_[0].result.tensors[i].scalar_type()));
  }
  for (const Computed& computed : computed_) {
    for (std::size_t i = 0; i < block_.size(); ++i) {
      const at::Tensor source = rows_in_memory(computed.result.tensors[i], layouts[i]);
      const std::size_t size_bytes = source.nbytes() / computed.rows.size();
      const std::byte* bytes = const_bytes(source);
      for (std::size_t k = 0; k < computed.rows.size(); ++k) {
        copy_bytes(row_of(block_[i], static_cast<std::size_t>(computed.rows[k]), size_bytes),
                   bytes + k * size_bytes, size_bytes);
      }
    }
  }
  copy_repeated();
  for (std::size_t i = 0; i < block_.size(); ++i) {
    together.tensors.push_back(
        reordered(block_[i], rows_first_order(layouts[i]), batch_order(layouts[i])));
  }
  return together;
}

// A copy from pinned memory runs while the host continues; torch keeps that memory until it is
// done.
at::Tensor RowsOutput::sent(const at::Tensor& block, const at::Device& device) const {
  return block.to(device, /*non_blocking=*/is_pinned_);
}

// Works on any device, and keeps the autograd graph of computed rows.
Flat RowsOutput::gathered() const {
  Flat together;
  together.root = computed_[0].result.root;
  std::vector<std::int64_t> place_of(rows_);
  std::int64_t end = 0;
  for (const std::size_t row : stored_) place_of[row] = end++;
  for (const Computed& computed : computed_) {
    for (const std::int64_t row : computed.rows) place_of[static_cast<std::size_t>(row)] = end++;
  }
  for (const auto& [row, same_as] : repeated_) place_of[row] = place_of[same_as];
  for (std::size_t i = 0; i < computed_[0].result.tensors.size(); ++i) {
    // The last result is the module's, if the module ran: rows that were resident on a device were
    // added before it.
    const at::Device device = computed_.back().result.tensors[i].device();
    std::vector<at::Tensor> parts;
    const TensorLayout layout = row_layout(i);
    const DimOrder rows_first = rows_first_order(layout);
    if (!stored_.empty()) {
      const std::vector<std::int64_t> stored(stored_.begin(), stored_.end());
      parts.push_back(is_pinned_ ? select_rows(sent(block_[i], device), stored)
                                 : select_rows(block_[i], stored).to(device));
    }
    for (const Computed& computed : computed_) {
      const at::Tensor part = in_memory_order(computed.result.tensors[i], rows_first);
      parts.push_back(part.device() == device ? part : part.to(device));
    }
    const at::Tensor rows = select_rows(parts.size() == 1 ? parts[0] : at::cat(parts), place_of);
    together.tensors.push_back(in_batch_order(rows, layout));
  }
  return together;
}

const std::vector<std::size_t>& RowsOutput::constants() const {
  return stored_.empty() ? constants_ : layout_->row_marks().constants;
}

// Replaces the rows of each constant by the constant. Returns false when they differ.
bool RowsOutput::take_constants(Flat& rows) const {
  for (const std::size_t i : constants()) {
    at::Tensor& tensor = rows.tensors[i];
    if (tensor.size(0) == 0) return false;
    const at::Tensor first = tensor.select(0, 0);
    const Flat all{{}, {tensor}, {}};
    const Flat expected{{}, {first.expand_as(tensor)}, {}};
    if (!difference(all, expected, tolerance_of_constant(tensor)).empty()) return false;
    tensor = first;
  }
  return true;
}

std::optional<Flat> RowsOutput::together(std::optional<at::Device> input_device) {
  auto rows = rows_together(input_device);
  if (rows.has_value() && !take_constants(*rows)) return std::nullopt;
  return rows;
}

std::optional<Flat> RowsOutput::rows_together(std::optional<at::Device> input_device) {
  // Without a stored row the block holds nothing, and computed rows need not fit it.
  if (stored_.empty()) {
    layout_ = nullptr;
    block_.clear();
  } else {
    widen();
  }
  if (!singles_.empty()) return std::nullopt;
  if (computed_.empty()) {
    OrdinaryTensors ordinary;
    copy_repeated();
    Flat together{layout_->root(), block_, {}};
    for (std::size_t i = 0; i < block_.size(); ++i) {
      const TensorLayout& row = layout_->tensors()[i];
      at::Tensor& tensor = together.tensors[i];
      if (row.is_beside_input && input_device.has_value()) tensor = sent(tensor, *input_device);
      if (row.dim_order.empty() && row.batch_place == 0) continue;
      const TensorLayout layout = row_layout(i);
      tensor = reordered(tensor, rows_first_order(layout), batch_order(layout));
    }
    return together;
  }
  // A single result for all rows in order is returned unchanged, whatever it is.
  if (computed_.size() == 1 && computed_[0].rows.size() == rows_ &&
      std::is_sorted(computed_[0].rows.begin(), computed_[0].rows.end())) {
    return std::move(computed_[0].result);
  }
  if (!do_computed_fit()) return std::nullopt;
  const bool are_on_cpu = std::all_of(computed_.begin(), computed_.end(),
                                      [](const Computed& one) { return is_on_cpu(one.result); });
  return are_on_cpu ? copied_on_cpu() : gathered();
}

std::vector<Flat> RowsOutput::apart(std::optional<at::Device> input_device) {
  std::vector<Flat> rows(rows_);
  const auto add = [&](std::size_t row, const Layout& layout, std::size_t i,
                       const at::Tensor& tensor) {
    const bool goes_to_input = layout.tensors()[i].is_beside_input && input_device.has_value();
    rows[row].tensors.push_back(goes_to_input ? tensor.to(*input_device) : tensor);
  };
  for (const Single& single : singles_) {
    rows[single.row].root = single.layout->root();
    for (std::size_t i = 0; i < single.tensors.size(); ++i) {
      add(single.row, *single.layout, i, single.tensors[i]);
    }
  }
  for (const std::size_t row : stored_) {
    rows[row].root = layout_->root();
    OrdinaryTensors ordinary;
    for (std::size_t i = 0; i < block_.size(); ++i) {
      const at::Tensor copy = copy_to_store(block_[i].select(0, static_cast<std::int64_t>(row)),
                                            cache::StoredDtype::kKeep);
      restore_logical_order(copy, layout_->tensors()[i].dim_order);
      add(row, *layout_, i, copy);
    }
  }
  for (const Computed& computed : computed_) {
    for (std::size_t k = 0; k < computed.rows.size(); ++k) {
      Flat& row = rows[static_cast<std::size_t>(computed.rows[k])];
      row.root = computed.result.root;
      for (const at::Tensor& tensor : computed.result.tensors) {
        row.tensors.push_back(tensor.select(0, static_cast<std::int64_t>(k)));
      }
    }
  }
  for (const auto& [row, same_as] : repeated_) {
    rows[row] = rows[same_as];
    const c10::InferenceMode no_inference(false);  // so that a graph continues through the copy
    for (at::Tensor& tensor : rows[row].tensors) tensor = copy_of(tensor);
  }
  return rows;
}

}  // namespace modcache::tensor
