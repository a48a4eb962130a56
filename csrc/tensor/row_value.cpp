// SPDX-License-Identifier: Apache-2.0
#include "tensor/row_value.h"

#include <cstring>
#include <utility>

#include "tensor/payload.h"
#include "tensor/storable.h"
#include "tensor/torch_version.h"

namespace modcache::tensor {

// NOLINTNEXTLINE(*-avoid-c-arrays): not zeroed, as a vector would be
RowValue::RowValue(LayoutPtr layout, std::size_t sharers)
    : layout_(std::move(layout)),
      sharers_(sharers),
      bytes_(new std::byte[layout_->payload_size_bytes()]) {}

cache::Written RowValue::write(codec::Codec codec) const {
  return write_payload(*layout_,
                       SharedBytes{shared_from_this(), bytes_.get(), layout_->payload_size_bytes()},
                       codec);
}

RowCutter::RowCutter(const Flat& result, std::optional<at::Device> input_device,
                     cache::StoredDtype dtype) {
  copies_.reserve(result.tensors.size());
  for (const at::Tensor& tensor : result.tensors) {
    // What lies ready to be cut is not copied first.
    const bool is_ready = dtype == cache::StoredDtype::kKeep && tensor.device().is_cpu() &&
                          tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg() &&
                          !tensor._is_zerotensor();
    copies_.push_back(is_ready ? tensor : copy_to_store(tensor, dtype));
  }
  layout_ = Layout::of_stored(result.root, copies_, result.tensors, input_device, /*is_row=*/true);
  if (!copies_.empty() && copies_[0].size(0) > 0) {
    rows_ = static_cast<std::size_t>(copies_[0].size(0));
  }
}

std::shared_ptr<const RowValue> RowCutter::cut(std::size_t row) const {
  auto value = std::make_shared<RowValue>(layout_, rows_);
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    const Layout::Place& place = layout_->places()[i];
    if (place.size_bytes == 0) continue;
    const std::byte* source = const_bytes(copies_[i]);
    std::memcpy(value->bytes_.get() + place.offset, source + row * place.size_bytes,
                place.size_bytes);
  }
  return value;
}

}  // namespace modcache::tensor
