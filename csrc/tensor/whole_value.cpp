// SPDX-License-Identifier: Apache-2.0
#include "tensor/whole_value.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <exception>
#include <utility>

#include "tensor/dim_order.h"
#include "tensor/layout.h"
#include "tensor/output_buffer.h"
#include "tensor/placement.h"
#include "tensor/rows.h"
#include "tensor/storable.h"
#include "tensor/torch_version.h"

namespace modcache::tensor {
namespace {

// Up to this size a copy costs no more than a copy-on-write alias.
constexpr std::size_t kCopyUpToBytes = 16 << 10;

// From this size on, mapping a copy of a file's bytes takes less time than copying them.
constexpr std::size_t kMapFromBytes = 1 << 20;

// Returns another tensor with the same memory, and not one that torch knows for a view.
at::Tensor same_memory(const at::Tensor& tensor) {
  return at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(
      c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true));
}

}  // namespace

WholeValue::WholeValue(LayoutPtr layout, std::vector<at::Tensor> masters, cache::Place place,
                       Lifetime lifetime)
    : layout_(std::move(layout)),
      layout_share_bytes_(Layout::share_bytes(layout_)),
      masters_(std::move(masters)),
      lifetime_(lifetime),
      place_(std::move(place)) {
  // Values in other places, and those that are handed out themselves, are copied in other ways.
  if (!place_.is_host() || lifetime_ == Lifetime::kHandedOutOnce) return;
  if (layout_->is_plain_lone_tensor() && masters_.front().nbytes() <= kCopyUpToBytes) {
    small_bytes_ = const_bytes(masters_.front());
  }
  // The first lazy clone makes a storage a shared one, which is not thread-safe; later clones only
  // count references, which is. So the first clone is made here.
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
  for (const at::Tensor& tensor : value.tensors) {
    masters.push_back(copy_to_store(in_memory_order(tensor, dim_order_of(tensor)), dtype));
    note_cut_output(tensor);
  }
  LayoutPtr layout =
      Layout::of_stored(value.root, masters, value.tensors, input_device, /*row=*/nullptr);
  return std::shared_ptr<const WholeValue>(new WholeValue(std::move(layout), std::move(masters)));
}

at::Tensor WholeValue::hand_out(std::size_t i, std::optional<at::Device> input_device) const {
  const bool goes_to_device =
      layout_->tensors()[i].is_beside_input && input_device.has_value() && !input_device->is_cpu();
  at::Tensor tensor;
  if (small_bytes_ != nullptr && !goes_to_device) {
    const NoInferenceTensors ordinary;
    const Layout::Place& place = layout_->places()[i];
    tensor = output_tensor(place.sizes, place.dtype);
    copy_bytes(mutable_bytes(tensor), small_bytes_, place.size_bytes);
  } else {
    const OrdinaryTensors ordinary;
    tensor =
        place_.is_host() ? copy_of_master(i, input_device) : copy_of_placed_master(i, input_device);
  }
  restore_logical_order(tensor, layout_->tensors()[i].dim_order);
  return tensor;
}

at::Tensor WholeValue::copy_of_master(std::size_t i, std::optional<at::Device> input_device) const {
  const at::ScalarType dtype = layout_->places()[i].dtype;
  const bool goes_to_input =
      layout_->tensors()[i].is_beside_input && input_device.has_value() && !input_device->is_cpu();
  const at::Tensor& master = masters_[i];
  if (goes_to_input) return master.to(*input_device).to(dtype);
  if (dtype != master.scalar_type()) return master.to(dtype);
  if (lifetime_ == Lifetime::kHandedOutOnce) {
    TORCH_CHECK(!has_given_memory_.exchange(true),
                "modcache: a value that is handed out once was asked for twice");
    return same_memory(master);
  }
  if (master.nbytes() > kCopyUpToBytes) return lazy_clone(master);
  at::Tensor copy = output_tensor(master.sizes(), dtype);
  copy_bytes(mutable_bytes(copy), const_bytes(master), master.nbytes());
  return copy;
}

at::Tensor WholeValue::copy_of_placed_master(std::size_t i,
                                             std::optional<at::Device> input_device) const {
  const at::Tensor& master = masters_[i];
  const at::ScalarType dtype = layout_->places()[i].dtype;
  const bool goes_to_input = layout_->tensors()[i].is_beside_input && input_device.has_value();
  const at::Device target = goes_to_input ? *input_device : at::Device(at::kCPU);
  if (place_.kind == cache::Place::Kind::kDevice) {
    note_use_by_current_stream(master);
    return master.to(target, /*non_blocking=*/false, /*copy=*/true).to(dtype);
  }
  // torch keeps the pinned memory until the asynchronous copy is done.
  if (!target.is_cpu()) return master.to(target, /*non_blocking=*/true).to(dtype);
  const at::Tensor widened = master.to(dtype);
  at::Tensor copy = pinned_tensor(widened.sizes(), dtype);
  copy_bytes(mutable_bytes(copy), const_bytes(widened), copy.nbytes());
  return copy;
}

std::vector<at::Tensor> WholeValue::hand_out(std::optional<at::Device> input_device) const {
  std::vector<at::Tensor> tensors;
  tensors.reserve(masters_.size());
  for (std::size_t i = 0; i < masters_.size(); ++i) tensors.push_back(hand_out(i, input_device));
  return tensors;
}

std::size_t WholeValue::size_bytes() const {
  std::size_t size = sizeof(WholeValue) + layout_share_bytes_;
  for (const at::Tensor& master : masters_) size += master.nbytes() + kTensorBytes;
  return size;
}

cache::Written WholeValue::write(codec::Codec codec) const {
  SharedBytes payload;
  const std::vector<at::Tensor> masters = masters_on_host();
  // A lone tensor is the payload, so the master itself serves without a copy.
  if (masters.size() == 1) {
    auto owner = std::make_shared<const at::Tensor>(masters[0]);
    payload = {std::move(owner), const_bytes(masters[0]), masters[0].nbytes()};
  } else {
    std::string bytes(layout_->payload_size_bytes(), '\0');
    for (std::size_t i = 0; i < masters.size(); ++i) {
      copy_bytes(bytes.data() + layout_->places()[i].offset, const_bytes(masters[i]),
                 masters[i].nbytes());
    }
    payload = share_bytes(std::move(bytes));
  }
  return write_payload(*layout_, std::move(payload), codec);
}

Result<std::shared_ptr<const cache::Value>> WholeValue::read(LayoutPtr layout,
                                                             std::size_t stored_size_bytes,
                                                             const ReadStored& read) {
  // torch may still refuse the sizes ([0, 2^62, 2^62] has no bytes), or run out of memory.
  try {
    OrdinaryTensors ordinary;
    std::vector<at::Tensor> masters;
    masters.reserve(layout->places().size());
    for (std::size_t i = 0; i < layout->places().size(); ++i) {
      masters.push_back(
          at::empty(layout->places()[i].sizes,
                    at::TensorOptions().dtype(layout->places()[i].stored_dtype).device(at::kCPU)));
    }
    if (masters.size() == 1) {
      MODCACHE_RETURN_IF_ERROR(
          read_payload(*layout, stored_size_bytes, read, mutable_bytes(masters[0])));
    } else {
      std::string payload(layout->payload_size_bytes(), '\0');
      MODCACHE_RETURN_IF_ERROR(read_payload(*layout, stored_size_bytes, read, payload.data()));
      for (std::size_t i = 0; i < masters.size(); ++i) {
        const Layout::Place& place = layout->places()[i];
        copy_bytes(mutable_bytes(masters[i]), payload.data() + place.offset, place.size_bytes);
      }
    }
    return std::shared_ptr<const cache::Value>(
        new WholeValue(std::move(layout), std::move(masters)));
  } catch (const std::exception& error) {
    return Status::io_error(std::string("a stored tensor could not be made: ") + text_of(error));
  }
}

Result<at::Tensor> WholeValue::read_tensor_once(const Layout& layout, std::size_t stored_size_bytes,
                                                const ReadStored& read, const MapStored& map) {
  const Layout::Place& place = layout.places().front();
  if (is_plain(layout) && place.size_bytes >= kMapFromBytes) {
    MODCACHE_ASSIGN_OR_RETURN(auto bytes, map());
    if (bytes != nullptr) return output_over(std::move(bytes), place.sizes, place.stored_dtype);
  }
  at::Tensor tensor = output_tensor(place.sizes, place.stored_dtype);
  MODCACHE_RETURN_IF_ERROR(read_payload(layout, stored_size_bytes, read, mutable_bytes(tensor)));
  return tensor;
}

Result<std::shared_ptr<const cache::Value>> WholeValue::read_once(LayoutPtr layout,
                                                                  std::size_t stored_size_bytes,
                                                                  const ReadStored& read,
                                                                  const MapStored& map) {
  if (layout->places().size() != 1) return WholeValue::read(layout, stored_size_bytes, read);
  try {
    OrdinaryTensors ordinary;
    MODCACHE_ASSIGN_OR_RETURN(auto tensor, read_tensor_once(*layout, stored_size_bytes, read, map));
    return std::shared_ptr<const cache::Value>(
        new WholeValue(std::move(layout), {std::move(tensor)}, {}, Lifetime::kHandedOutOnce));
  } catch (const std::exception& error) {
    return Status::io_error(std::string("a stored tensor could not be made: ") + text_of(error));
  }
}

std::vector<at::Tensor> WholeValue::masters_on_host() const {
  if (place_.kind != cache::Place::Kind::kDevice) return masters_;
  OrdinaryTensors ordinary;
  std::vector<at::Tensor> masters;
  for (const at::Tensor& master : masters_) {
    note_use_by_current_stream(master);
    masters.push_back(master.to(at::kCPU));
  }
  return masters;
}

std::shared_ptr<const WholeValue> WholeValue::moved(const cache::Place& place) const {
  OrdinaryTensors ordinary;
  std::vector<at::Tensor> masters;
  for (const at::Tensor& master : masters_on_host()) {
    at::Tensor copy;
    if (place.kind == cache::Place::Kind::kDevice) {
      copy = copy_to_device(master, place.device);
      if (!copy.defined()) return nullptr;
    } else {
      const bool is_pinned = place.kind == cache::Place::Kind::kPinned;
      copy = is_pinned ? pinned_tensor(master.sizes(), master.scalar_type())
                       : at::empty(master.sizes(), master.options().pinned_memory(false));
      copy_bytes(mutable_bytes(copy), const_bytes(master), master.nbytes());
    }
    masters.push_back(std::move(copy));
  }
  return std::shared_ptr<const WholeValue>(new WholeValue(layout_, std::move(masters), place));
}

}  // namespace modcache::tensor
