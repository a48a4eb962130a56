// SPDX-License-Identifier: Apache-2.0
#include "module/tensor_watch.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstring>

#include "module/optimizer_steps.h"
#include "tensor/input.h"

namespace modcache::module {
namespace {

// Straight from the impl: this runs for every tensor of a module at every call.
std::uint32_t version_of(c10::TensorImpl& tensor) {
  // Inference tensors count no versions; samples stand in for them.
  return tensor.is_inference() ? 0 : tensor.version_counter().current_version();
}

bool is_all_zero(const std::byte* bytes, std::size_t size_bytes) {
  return std::all_of(bytes, bytes + size_bytes, [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

const char* why_not_hashable(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  if (tensor.layout() != at::kStrided) return "not dense (sparse or opaque)";
  if (tensor.is_quantized()) return "quantized";
  if (tensor.is_nested()) return "nested";
  if (tensor.is_meta() || !tensor.has_storage()) return "without data";
  return nullptr;
}

Digest128 hash_tensor(const at::Tensor& tensor) {
  Xxh3Hasher hasher;
  if (!tensor.defined()) {
    hasher.add("undefined");
    return hasher.digest();
  }
  hasher.add(tensor::dtype_name(tensor.scalar_type()));
  hasher.add(static_cast<std::uint64_t>(tensor.dim()));
  for (const std::int64_t size : tensor.sizes()) hasher.add(static_cast<std::uint64_t>(size));
  c10::InferenceMode plain_tensors(false);
  at::NoGradGuard no_grad;
  const at::Tensor dense = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous();
  if (dense.nbytes() != 0) hasher.update(dense.const_data_ptr(), dense.nbytes());
  return hasher.digest();
}

TensorWatch::Record::Record(const at::Tensor& watched) {
  tensor_address = watched.unsafeGetTensorImpl();
  if (!watched.defined()) return;
  if (watched.has_storage()) {
    storage.emplace(watched.storage().getWeakStorageImpl());
    storage_address = watched.storage().unsafeGetStorageImpl();
  }
  data = watched.has_storage() ? watched.storage().data() : nullptr;
  version = version_of(*watched.unsafeGetTensorImpl());
  dtype = watched.scalar_type();
  storage_offset = watched.storage_offset();
  sizes_and_strides.append(watched.sizes().begin(), watched.sizes().end());
  sizes_and_strides.append(watched.strides().begin(), watched.strides().end());
  is_conjugate = watched.is_conj();
  is_negative = watched.is_neg();
}

// Places are spread over the tensor; one that holds only zeros says little (scaling leaves it as
// it is), so a few neighbours are tried for it.
void TensorWatch::Record::take_samples(const at::Tensor& watched) {
  samples = 0;
  if (!watched.defined() || !watched.is_cpu() || watched.nbytes() == 0) return;
  const auto* bytes = static_cast<const std::byte*>(watched.const_data_ptr());
  // A tensor with gaps lends its first element only: what lies between is not its own.
  const bool has_gaps = !watched.unsafeGetTensorImpl()->is_non_overlapping_and_dense();
  const std::size_t size_bytes = has_gaps ? watched.element_size() : watched.nbytes();
  const std::size_t count =
      std::min(kSamplesPerTensor, (size_bytes + kSampleBytes - 1) / kSampleBytes);
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t offset = size_bytes / count * i;
    for (int attempt = 0; attempt < 8; ++attempt) {
      const std::size_t next = offset + kSampleBytes;
      if (next + kSampleBytes > size_bytes || !is_all_zero(bytes + offset, kSampleBytes)) break;
      offset = next;
    }
    Sample& taken = sample[samples++];
    taken.place = bytes + offset;
    taken.size_bytes = std::min(kSampleBytes, size_bytes - offset);
    std::memcpy(taken.bytes.data(), taken.place, taken.size_bytes);
  }
}

TensorWatch::TensorWatch(const std::vector<at::Tensor>& tensors, Hashing hashing,
                         const TensorWatch* before) {
  // Before anything is read: a step in between is then seen by the next comparison.
  steps_seen_ = optimizer_steps();
  if (before != nullptr && !before->all_samples_match(tensors)) before = nullptr;
  records_.reserve(tensors.size());
  std::int64_t largest_bytes = -1;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    Record record(tensor);
    // Identity first, contents second: a write in between is seen by the next comparison.
    if (hashing == Hashing::kContents) {
      const bool unchanged =
          before != nullptr && i < before->size() && before->same_identity(i, tensor);
      record.digest = unchanged ? before->digest(i) : hash_tensor(tensor);
    }
    record.take_samples(tensor);
    if (tensor.defined() && tensor.requires_grad()) trainable_.push_back(i);
    if (record.samples != 0 && static_cast<std::int64_t>(tensor.nbytes()) > largest_bytes) {
      largest_bytes = static_cast<std::int64_t>(tensor.nbytes());
      largest_ = i;
    }
    records_.push_back(std::move(record));
  }
}

bool TensorWatch::Record::has_geometry_of(const c10::TensorImpl& now) const {
  const auto sizes = now.sizes();
  const auto strides = now.strides();
  const std::int64_t* known = sizes_and_strides.data();
  return sizes.size() + strides.size() == sizes_and_strides.size() &&
         std::equal(sizes.begin(), sizes.end(), known) &&
         std::equal(strides.begin(), strides.end(), known + sizes.size());
}

bool TensorWatch::same_identity(std::size_t index, const at::Tensor& tensor) const {
  const Record& record = records_[index];
  c10::TensorImpl& now = *tensor.unsafeGetTensorImpl();
  if (&now != record.tensor_address) return false;
  if (!tensor.defined()) return true;
  if (now.has_storage() != (record.storage_address != nullptr)) return false;
  if (now.has_storage()) {
    const c10::StorageImpl* storage = now.unsafe_storage().unsafeGetStorageImpl();
    if (storage != record.storage_address || storage->data() != record.data) return false;
  }
  if (tensor.is_conj() != record.is_conjugate || tensor.is_neg() != record.is_negative)
    return false;
  return version_of(now) == record.version && now.storage_offset() == record.storage_offset &&
         c10::typeMetaToScalarType(now.dtype()) == record.dtype && record.has_geometry_of(now);
}

bool TensorWatch::sample_matches(const Record& record, std::uint64_t turn) const {
  if (record.samples == 0) return true;
  const Sample& sample = record.sample[turn % record.samples];
  return std::memcmp(sample.place, sample.bytes.data(), sample.size_bytes) == 0;
}

bool TensorWatch::no_step_since() const {
  const std::uint64_t seen = steps_seen_.load(std::memory_order_relaxed);
  const std::uint64_t now = optimizer_steps();
  if (now == seen) return true;
  for (const Record& record : records_) {
    if (was_stepped_since(seen, record.tensor_address)) return false;
  }
  steps_seen_.store(now, std::memory_order_relaxed);
  return true;
}

bool TensorWatch::all_samples_match(const std::vector<at::Tensor>& tensors) const {
  if (!no_step_since()) return false;
  const std::size_t common = std::min(tensors.size(), records_.size());
  for (std::size_t i = 0; i < common; ++i) {
    // Samples of a tensor that is no longer the same may point into freed memory.
    if (!same_identity(i, tensors[i])) continue;
    for (std::uint64_t turn = 0; turn < records_[i].samples; ++turn) {
      if (!sample_matches(records_[i], turn)) return false;
    }
  }
  return true;
}

bool TensorWatch::samples_match(std::size_t* culprit) const {
  if (records_.empty()) return true;
  if (!no_step_since()) {
    if (culprit != nullptr) *culprit = 0;
    return false;
  }
  const std::uint64_t turn = turn_.fetch_add(1, std::memory_order_relaxed);
  const auto differs = [&](std::size_t index) {
    if (sample_matches(records_[index], turn)) return false;
    if (culprit != nullptr) *culprit = index;
    return true;
  };
  const std::size_t count = std::min(kTensorsPerTurn, records_.size());
  for (std::size_t i = 0; i < count; ++i) {
    if (differs((turn * kTensorsPerTurn + i) % records_.size())) return false;
  }
  if (differs(largest_)) return false;
  return std::none_of(trainable_.begin(), trainable_.end(), differs);
}

TensorWatch::Change TensorWatch::compare(const std::vector<at::Tensor>& tensors,
                                         std::size_t* culprit) const {
  const std::size_t common = std::min(tensors.size(), records_.size());
  for (std::size_t i = 0; i < common; ++i) {
    if (same_identity(i, tensors[i])) continue;
    if (culprit != nullptr) *culprit = i;
    return Change::kIdentity;
  }
  if (tensors.size() != records_.size()) {
    if (culprit != nullptr) *culprit = common;
    return Change::kIdentity;
  }
  return samples_match(culprit) ? Change::kNone : Change::kSample;
}

}  // namespace modcache::module
