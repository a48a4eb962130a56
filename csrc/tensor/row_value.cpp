// SPDX-License-Identifier: Apache-2.0
#include "tensor/row_value.h"

#include <ATen/core/DimVector.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

#include "tensor/dim_order.h"
#include "tensor/output_buffer.h"
#include "tensor/placement.h"
#include "tensor/rows.h"
#include "tensor/storable.h"
#include "tensor/torch_version.h"

namespace modcache::tensor {
namespace {

// Copies the elements of a part of a row to `target`, in order.
void copy_plain(const at::Tensor& part, std::byte* target) {
  OrdinaryTensors ordinary;
  const at::Tensor plain = as_operable(part).contiguous();
  copy_bytes(target, const_bytes(plain), plain.nbytes());
}

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

// NOLINTNEXTLINE(*-avoid-c-arrays): not zeroed, as a vector would be
RowValue::RowValue(LayoutPtr layout)
    : layout_(std::move(layout)),
      layout_share_bytes_(Layout::share_bytes(layout_)),
      bytes_(new std::byte[layout_->payload_size_bytes()]) {}

RowValue::RowValue(const RowValue& host, at::Tensor on_device)
    : layout_(host.layout_),
      layout_share_bytes_(host.layout_share_bytes_),
      on_device_(std::move(on_device)) {}

Result<std::shared_ptr<const cache::Value>> RowValue::read(LayoutPtr layout,
                                                           std::size_t stored_size_bytes,
                                                           const ReadStored& read) {
  auto value = std::make_shared<RowValue>(std::move(layout));
  MODCACHE_RETURN_IF_ERROR(
      read_payload(*value->layout_, stored_size_bytes, read, value->bytes_.get()));
  return std::shared_ptr<const cache::Value>(std::move(value));
}

bool RowValue::is_plain_lone_tensor() const {
  if (is_on_device() || !layout_->is_plain_lone_tensor()) return false;
  const TensorLayout& tensor = layout_->tensors().front();
  return tensor.dim_order.empty() && tensor.batch_place == 0 && tensor.padded_dims == 0 &&
         !tensor.is_constant && !tensor.is_unproven_alone;
}

at::Tensor RowValue::batch_of_one() const {
  const NoInferenceTensors ordinary;
  const Layout::Place& place = layout_->places().front();
  at::DimVector sizes{1};
  sizes.append(place.sizes.begin(), place.sizes.end());
  at::Tensor batch = output_tensor(sizes, place.dtype);
  copy_bytes(mutable_bytes(batch), bytes(), place.size_bytes);
  return batch;
}

std::shared_ptr<const RowValue> RowValue::on(const std::string& device) const {
  const auto size = static_cast<std::int64_t>(layout_->payload_size_bytes());
  const at::Tensor host = at::from_blob(bytes_.get(), {size}, at::kByte);
  at::Tensor there = copy_to_device(host, device);
  if (!there.defined()) return nullptr;
  return std::shared_ptr<const RowValue>(new RowValue(*this, std::move(there)));
}

std::shared_ptr<const RowValue> RowValue::on_host() const {
  auto row = std::make_shared<RowValue>(layout_);
  note_use_by_current_stream(on_device_);
  const at::Tensor here = on_device_.to(at::kCPU);
  copy_bytes(row->bytes_.get(), const_bytes(here), here.nbytes());
  return row;
}

cache::Written RowValue::write(codec::Codec codec) const {
  if (is_on_device()) return on_host()->write(codec);
  return write_payload(*layout_,
                       SharedBytes{shared_from_this(), bytes_.get(), layout_->payload_size_bytes()},
                       codec);
}

RowCutter::RowCutter(const Flat& result, std::optional<at::Device> input_device,
                     cache::StoredDtype dtype, const RowMarks& marks) {
  copies_.reserve(result.tensors.size());
  for (const at::Tensor& tensor : result.tensors) {
    TensorLayout layout;
    set_dim_order(layout, tensor, /*is_row=*/true);
    const at::Tensor rows = in_memory_order(tensor, rows_first_order(layout));
    // A tensor whose rows are in one piece on the CPU and keep their dtype is cut without a copy.
    const bool is_ready =
        dtype == cache::StoredDtype::kKeep && rows.device().is_cpu() && has_plain_memory(rows);
    copies_.push_back(is_ready ? rows : copy_to_store(rows, dtype));
    note_cut_output(tensor);
  }
  layout_ = Layout::of_stored(result.root, copies_, result.tensors, input_device, &marks);
}

std::shared_ptr<const RowValue> RowCutter::cut(std::size_t row) const {
  auto value = std::make_shared<RowValue>(layout_);
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    const Layout::Place& place = layout_->places()[i];
    copy_bytes(value->bytes_.get() + place.offset, const_bytes(copies_[i]) + row * place.size_bytes,
               place.size_bytes);
  }
  return value;
}

std::shared_ptr<const RowValue> RowCutter::cut(std::size_t row, const std::vector<DimSet>& dims,
                                               std::int64_t length, TruePart part) {
  LayoutPtr& layout = layouts_[length];
  if (layout == nullptr) layout = layout_->cut_to_length(dims, length);
  auto value = std::make_shared<RowValue>(layout);
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    const Layout::Place& place = layout->places()[i];
    const at::Tensor whole = copies_[i].select(0, static_cast<std::int64_t>(row));
    const at::Tensor cut =
        cut_to_length(whole, permuted(dims[i], layout->tensors()[i].dim_order), length, part);
    copy_plain(cut, value->bytes_.get() + place.offset);
  }
  return value;
}

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
