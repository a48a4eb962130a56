// SPDX-License-Identifier: Apache-2.0
#include "tensor/tensor_value.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/InferenceMode.h>
#include <torch/version.h>

#include <cstring>
#include <exception>
#include <utility>

#include "tensor/tensor_header.h"

#define MODCACHE_HAS_LAZY_CLONE \
  (TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 2))
#if MODCACHE_HAS_LAZY_CLONE
#include <ATen/ops/_lazy_clone.h>
#endif

namespace modcache::tensor {
namespace {

// Below this a copy costs no more than a copy-on-write alias.
constexpr std::size_t kCopyUpToBytes = 16 << 10;

// Makes ordinary tensors inside whatever mode the caller is in: no inference tensors, no graph.
struct OrdinaryTensors {
  c10::InferenceMode no_inference{false};
  at::NoGradGuard no_grad;
};

bool is_known_dtype(at::ScalarType type) {
  switch (type) {
    case at::ScalarType::Undefined:
    case at::ScalarType::NumOptions: return false;
    default: return !c10::isQIntType(type) && !c10::isBitsType(type);
  }
}

}  // namespace

const char* why_not_storable(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  const c10::DispatchKeySet keys = tensor.key_set();
  // Before the layout is asked for: wrappers may answer anything.
  if (keys.has_any(c10::DispatchKeySet(
          {c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper,
           c10::DispatchKey::BatchedNestedTensor, c10::DispatchKey::Batched,
           c10::DispatchKey::Functionalize}))) {
    return "inside a functorch or functionalization transform";
  }
  if (keys.has(c10::DispatchKey::Python)) return "a tensor subclass";
  if (tensor.is_nested()) return "nested";
  if (tensor.is_quantized()) return "quantized";
  if (tensor.layout() != at::kStrided) return "not dense (sparse or opaque)";
  if (tensor.is_meta() || !tensor.has_storage()) return "without data";
  if (!is_known_dtype(tensor.scalar_type())) return "of a dtype that cannot be stored";
  if (tensor.dim() > static_cast<std::int64_t>(TensorHeader::kMostDimensions)) {
    return "of more than 64 dimensions";
  }
  return nullptr;
}

TensorValue::TensorValue(at::Tensor master, bool beside_input)
    : master_(std::move(master)), beside_input_(beside_input) {
#if MODCACHE_HAS_LAZY_CLONE
  // The first lazy clone turns a storage into a shared one, which is not thread-safe; all later
  // ones only count references, which is. So the first happens here.
  if (master_.nbytes() > kCopyUpToBytes) {
    OrdinaryTensors ordinary;
    master_ = at::_lazy_clone(master_);
  }
#endif
}

std::shared_ptr<const TensorValue> TensorValue::copy_of(const at::Tensor& result,
                                                        std::optional<at::Device> input_device) {
  OrdinaryTensors ordinary;
  const at::Tensor plain = result.detach();
  at::Tensor master =
      at::empty(plain.sizes(), plain.options().device(at::kCPU).pinned_memory(false).memory_format(
                                   at::MemoryFormat::Contiguous));
  master.copy_(plain);
  const bool beside_input = input_device.has_value() && *input_device == result.device();
  return std::shared_ptr<const TensorValue>(new TensorValue(std::move(master), beside_input));
}

at::Tensor TensorValue::hand_out(std::optional<at::Device> input_device) const {
  OrdinaryTensors ordinary;
  if (beside_input_ && input_device.has_value() && !input_device->is_cpu()) {
    return master_.to(*input_device);
  }
#if MODCACHE_HAS_LAZY_CLONE
  if (master_.nbytes() > kCopyUpToBytes) return at::_lazy_clone(master_);
#endif
  at::Tensor copy = at::empty(master_.sizes(), master_.options());
  if (master_.nbytes() != 0) {
    std::memcpy(copy.mutable_data_ptr(), master_.const_data_ptr(), master_.nbytes());
  }
  return copy;
}

std::string TensorValue::header() const {
  TensorHeader header;
  header.dtype = static_cast<std::uint8_t>(master_.scalar_type());
  header.flags = beside_input_ ? TensorHeader::kBesideInput : 0;
  header.sizes = master_.sizes().vec();
  return encode_tensor_header(header);
}

SharedBytes TensorValue::payload() const {
  auto owner = std::make_shared<const at::Tensor>(master_);
  return {std::move(owner), static_cast<const std::byte*>(master_.const_data_ptr()),
          master_.nbytes()};
}

Result<std::shared_ptr<const cache::Value>> TensorFormat::read(
    std::string_view bytes, const store::FoundEntry& found) const {
  auto decoded = decode_tensor_header(bytes);
  if (!decoded.is_ok()) return decoded.status();
  const TensorHeader& header = decoded.value();
  const auto dtype = static_cast<at::ScalarType>(header.dtype);
  if (header.dtype >= static_cast<std::uint8_t>(at::ScalarType::NumOptions) ||
      !is_known_dtype(dtype)) {
    return Status::corruption("a tensor header has the unknown dtype " +
                              std::to_string(header.dtype));
  }
  // Bounded by the payload before anything is allocated: sizes come from a file.
  std::uint64_t size_bytes = c10::elementSize(dtype);
  for (const std::int64_t size : header.sizes) {
    if (__builtin_mul_overflow(size_bytes, static_cast<std::uint64_t>(size), &size_bytes)) {
      return Status::corruption("a tensor header has sizes that overflow");
    }
  }
  if (size_bytes != found.payload_size_bytes()) {
    return Status::corruption("a tensor header asks for " + std::to_string(size_bytes) +
                              " bytes, its payload has " +
                              std::to_string(found.payload_size_bytes()));
  }
  // torch may still refuse the sizes ([0, 2^62, 2^62] has no bytes), or find no memory.
  try {
    OrdinaryTensors ordinary;
    at::Tensor master = at::empty(header.sizes, at::TensorOptions().dtype(dtype).device(at::kCPU));
    MODCACHE_RETURN_IF_ERROR(found.read_payload(master.mutable_data_ptr()));
    const bool beside_input = (header.flags & TensorHeader::kBesideInput) != 0;
    return std::shared_ptr<const cache::Value>(new TensorValue(std::move(master), beside_input));
  } catch (const std::exception& error) {
    return Status::io_error(std::string("a stored tensor could not be made: ") + error.what());
  }
}

}  // namespace modcache::tensor
