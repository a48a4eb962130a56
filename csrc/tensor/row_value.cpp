// SPDX-License-Identifier: Apache-2.0
#include "tensor/row_value.h"

#include <ATen/core/DimVector.h>
#include <ATen/ops/from_blob.h>

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
  OrdinaryTensors ordinary;
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

}  // namespace modcache::tensor
