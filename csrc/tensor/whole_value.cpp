// SPDX-License-Identifier: Apache-2.0
#include "tensor/whole_value.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <exception>
#include <utility>

#include "tensor/error_text.h"
#include "tensor/payload.h"
#include "tensor/storable.h"
#include "tensor/torch_version.h"

namespace modcache::tensor {
namespace {

// Below this a copy costs no more than a copy-on-write alias.
constexpr std::size_t kCopyUpToBytes = 16 << 10;

}  // namespace

WholeValue::WholeValue(LayoutPtr layout, std::vector<at::Tensor> masters)
    : layout_(std::move(layout)), masters_(std::move(masters)) {
  if (!kHasLazyClone) return;
  // The first lazy clone turns a storage into a shared one, which is not thread-safe; all later
  // ones only count references, which is. So the first happens here.
  OrdinaryTensors ordinary;
  for (at::Tensor& master : masters_) {
    if (master.nbytes() > kCopyUpToBytes) master = lazy_clone(master);
  }
}

std::shared_ptr<const WholeValue> WholeValue::copy_of(const Flat& value,
                                                      std::optional<at::Device> input_device,
                                                      cache::StoredDtype dtype) {
  std::vector<at::Tensor> masters;
  masters.reserve(value.tensors.size());
  for (const at::Tensor& tensor : value.tensors) masters.push_back(copy_to_store(tensor, dtype));
  LayoutPtr layout =
      Layout::of_stored(value.root, masters, value.tensors, input_device, /*is_row=*/false);
  return std::shared_ptr<const WholeValue>(new WholeValue(std::move(layout), std::move(masters)));
}

at::Tensor WholeValue::hand_out(std::size_t i, std::optional<at::Device> input_device) const {
  OrdinaryTensors ordinary;
  const at::Tensor& master = masters_[i];
  const at::ScalarType dtype = layout_->places()[i].dtype;
  const bool goes_to_input =
      layout_->tensors()[i].is_beside_input && input_device.has_value() && !input_device->is_cpu();
  if (goes_to_input) return master.to(*input_device).to(dtype);
  if (dtype != master.scalar_type()) return master.to(dtype);
  if (master.nbytes() > kCopyUpToBytes) return lazy_clone(master);
  at::Tensor copy = at::empty(master.sizes(), master.options());
  if (master.nbytes() != 0) {
    std::memcpy(mutable_bytes(copy), const_bytes(master), master.nbytes());
  }
  return copy;
}

std::vector<at::Tensor> WholeValue::hand_out(std::optional<at::Device> input_device) const {
  std::vector<at::Tensor> tensors;
  tensors.reserve(masters_.size());
  for (std::size_t i = 0; i < masters_.size(); ++i) tensors.push_back(hand_out(i, input_device));
  return tensors;
}

std::size_t WholeValue::size_bytes() const {
  std::size_t size = sizeof(WholeValue) + layout_->size_bytes();
  for (const at::Tensor& master : masters_) size += master.nbytes() + kTensorBytes;
  return size;
}

cache::Written WholeValue::write(codec::Codec codec) const {
  SharedBytes payload;
  if (masters_.size() == 1) {
    auto owner = std::make_shared<const at::Tensor>(masters_[0]);
    payload = {std::move(owner), const_bytes(masters_[0]), masters_[0].nbytes()};
  } else {
    std::string bytes(layout_->payload_size_bytes(), '\0');
    for (std::size_t i = 0; i < masters_.size(); ++i) {
      const std::size_t size_bytes = masters_[i].nbytes();
      if (size_bytes == 0) continue;
      std::memcpy(bytes.data() + layout_->places()[i].offset, const_bytes(masters_[i]), size_bytes);
    }
    payload = share_bytes(std::move(bytes));
  }
  return write_payload(*layout_, std::move(payload), codec);
}

Result<std::shared_ptr<const cache::Value>> WholeFormat::read(
    std::string_view bytes, const store::FoundEntry& found) const {
  auto decoded = Layout::decode(bytes);
  if (!decoded.is_ok()) return decoded.status();
  const LayoutPtr layout = std::move(decoded).value();
  MODCACHE_RETURN_IF_ERROR(check_payload_size(*layout, found.payload_size_bytes()));
  // torch may still refuse the sizes ([0, 2^62, 2^62] has no bytes), or find no memory.
  try {
    OrdinaryTensors ordinary;
    std::vector<at::Tensor> masters;
    masters.reserve(layout->places().size());
    for (std::size_t i = 0; i < layout->places().size(); ++i) {
      masters.push_back(
          at::empty(layout->tensors()[i].sizes,
                    at::TensorOptions().dtype(layout->places()[i].stored_dtype).device(at::kCPU)));
    }
    if (masters.size() == 1) {
      MODCACHE_RETURN_IF_ERROR(read_payload(*layout, found, mutable_bytes(masters[0])));
    } else {
      std::string payload(layout->payload_size_bytes(), '\0');
      MODCACHE_RETURN_IF_ERROR(read_payload(*layout, found, payload.data()));
      for (std::size_t i = 0; i < masters.size(); ++i) {
        const Layout::Place& place = layout->places()[i];
        if (place.size_bytes == 0) continue;
        std::memcpy(mutable_bytes(masters[i]), payload.data() + place.offset, place.size_bytes);
      }
    }
    return std::shared_ptr<const cache::Value>(new WholeValue(layout, std::move(masters)));
  } catch (const std::exception& error) {
    return Status::io_error(std::string("a stored tensor could not be made: ") + text_of(error));
  }
}

}  // namespace modcache::tensor
