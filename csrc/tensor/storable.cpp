// SPDX-License-Identifier: Apache-2.0
#include "tensor/storable.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/isinf.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "tensor/rows.h"
#include "tensor/torch_version.h"
#include "tensor/value_header.h"

namespace modcache::tensor {
namespace {

// Returns another dtype of the same size for a dtype that lacks operators.
std::optional<at::ScalarType> stand_in(at::ScalarType type) {
  switch (type) {
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat:
    case at::kDouble:
    case at::kBool:
    case at::kComplexFloat:
    case at::kComplexDouble: return std::nullopt;
    default: break;
  }
  switch (c10::elementSize(type)) {
    case 1: return at::kByte;
    case 2: return at::kShort;
    case 4: return at::kInt;
    default: return at::kLong;
  }
}

at::Tensor contiguous_copy(const at::Tensor& tensor, at::ScalarType dtype) {
  at::Tensor copy =
      at::empty(tensor.sizes(),
                tensor.options().device(at::kCPU).dtype(dtype).pinned_memory(false).memory_format(
                    at::MemoryFormat::Contiguous));
  copy.copy_(tensor);
  return copy;
}

// Larger tensors are left to torch, which copies them with several threads.
constexpr std::size_t kMostCopiedAtOnce = 64 << 10;

// Returns a copy of bytes, in a tenth of the steps that torch's operators take; undefined where it
// takes more than copying bytes.
at::Tensor copy_of_bytes(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || !has_plain_memory(tensor) || tensor.nbytes() > kMostCopiedAtOnce)
    return {};
  const OrdinaryTensors ordinary;
  at::Tensor copy = at::detail::empty_cpu(tensor.sizes(), tensor.scalar_type());
  copy_bytes(mutable_bytes(copy), const_bytes(tensor), tensor.nbytes());
  return copy;
}

// Returns whether the elements lie within the storage, which may have been freed by resizing it.
// Zeros that take no memory have elements, too.
bool has_its_elements(const at::Tensor& tensor) {
  if (tensor.numel() == 0 || tensor._is_zerotensor()) return true;
  const at::IntArrayRef sizes = tensor.sizes();
  const at::IntArrayRef strides = tensor.strides();
  std::int64_t last = tensor.storage_offset();
  for (std::size_t i = 0; i < sizes.size(); ++i) last += (sizes[i] - 1) * strides[i];
  const std::size_t needed_bytes = (static_cast<std::size_t>(last) + 1) * tensor.element_size();
  return tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes() >= needed_bytes;
}

std::optional<at::ScalarType> narrower(at::ScalarType type, cache::StoredDtype wanted) {
  if (wanted == cache::StoredDtype::kKeep || (type != at::kFloat && type != at::kDouble)) {
    return std::nullopt;
  }
  return wanted == cache::StoredDtype::kFloat16 ? at::kHalf : at::kBFloat16;
}

}  // namespace

bool is_storable_dtype(at::ScalarType type) {
  switch (type) {
    case at::ScalarType::Undefined:
    case at::ScalarType::NumOptions: return false;
    default: return !c10::isQIntType(type) && !is_bits_dtype(type);
  }
}

const char* why_not_storable(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  const c10::DispatchKeySet keys = tensor.key_set();
  // Check this before the layout: wrappers may answer anything.
  if (keys.has_any(transform_keys())) return "inside a functorch or functionalization transform";
  if (keys.has(c10::DispatchKey::Python)) return "a tensor subclass";
  if (tensor.is_nested()) return "nested";
  if (tensor.is_quantized()) return "quantized";
  if (tensor.layout() != at::kStrided) return "not dense (sparse or opaque)";
  if (tensor.is_meta() || !tensor.has_storage() || !has_its_elements(tensor)) return "without data";
  if (!is_storable_dtype(tensor.scalar_type())) return "of a dtype that cannot be stored";
  if (tensor.dim() > static_cast<std::int64_t>(ValueHeader::kMostDimensions)) {
    return "of more than 64 dimensions";
  }
  return nullptr;
}

bool has_plain_memory(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg() &&
         !tensor._is_zerotensor();
}

at::Tensor as_operable(const at::Tensor& tensor) {
  const auto other = stand_in(tensor.scalar_type());
  return other.has_value() ? tensor.resolve_conj().view(*other) : tensor;
}

at::Tensor copy_of(const at::Tensor& tensor) {
  const at::Tensor copy = as_operable(tensor).clone();
  return copy.scalar_type() == tensor.scalar_type() ? copy : copy.view(tensor.scalar_type());
}

at::Tensor copy_to_store(const at::Tensor& tensor, cache::StoredDtype dtype) {
  const bool may_narrow = narrower(tensor.scalar_type(), dtype).has_value();
  if (at::Tensor copy = may_narrow ? at::Tensor() : copy_of_bytes(tensor); copy.defined())
    return copy;
  const OrdinaryTensors ordinary;
  const at::Tensor plain = tensor.detach();
  if (const auto narrow = narrower(plain.scalar_type(), dtype)) {
    at::Tensor narrowed = contiguous_copy(plain, *narrow);
    if (at::equal(at::isinf(narrowed), at::isinf(plain).to(at::kCPU))) return narrowed;
  }
  const at::Tensor operable = as_operable(plain);
  const at::Tensor copy = contiguous_copy(operable, operable.scalar_type());
  return copy.scalar_type() == plain.scalar_type() ? copy : copy.view(plain.scalar_type());
}

}  // namespace modcache::tensor
