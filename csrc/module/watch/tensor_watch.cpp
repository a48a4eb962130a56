// SPDX-License-Identifier: Apache-2.0
#include "module/watch/tensor_watch.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "module/watch/optimizer_steps.h"
#include "tensor/input.h"
#include "tensor/torch_version.h"

namespace modcache::module {
namespace {

// Reads the impl directly, as this runs for every tensor of a module at every call.
std::uint32_t version_of(c10::TensorImpl& tensor) {
  // Inference tensors count no versions; samples replace them.
  return tensor.is_inference() ? 0 : tensor.version_counter().current_version();
}

// The limit for tensors without versions that are hashed around each run that misses. Counters and
// the state of a decoder are far smaller.
constexpr std::size_t kMostUncountedBytes = 16 << 20;

bool is_hashed_around_a_run(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_inference() && why_not_hashable(tensor) == nullptr &&
         tensor.is_cpu() && tensor.nbytes() <= kMostUncountedBytes;
}

bool is_opaque(const at::Tensor& tensor) {
  return tensor.layout() != at::kStrided || tensor.is_nested() ||
         tensor.key_set().has(c10::DispatchKey::Python);
}

}  // namespace

const char* why_not_hashable(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  if (tensor.layout() != at::kStrided) return "not dense (sparse or opaque)";
  if (tensor.is_quantized()) return "quantized";
  if (tensor.is_nested()) return "nested";
  if (tensor.key_set().has(c10::DispatchKey::Python)) return "of a Python class";
  if (tensor.is_meta() || !tensor.has_storage()) return "without data";
  return nullptr;
}

namespace {

// `contents`, unless null, gets the same bytes as the hash of tensor `index`.
Digest128 hash_with_contents(const at::Tensor& tensor, RotatingRead* contents, std::size_t index) {
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
  if (dense.nbytes() == 0) return hasher.digest();
  const std::byte* const bytes = tensor::const_bytes(dense);
  // Each chunk is added before it is hashed: a write in between then differs from the chunk.
  const bool is_own_memory = contents != nullptr && dense.is_alias_of(tensor);
  if (contents != nullptr && !is_own_memory) contents->add(index, tensor);
  for (std::size_t at = 0; at < dense.nbytes(); at += RotatingRead::kChunkBytes) {
    const std::size_t size_bytes = std::min(RotatingRead::kChunkBytes, dense.nbytes() - at);
    if (is_own_memory) contents->add_dense(index, bytes + at, size_bytes);
    hasher.update(bytes + at, size_bytes);
  }
  return hasher.digest();
}

// Returns the storage that writes to the tensor go to; null where there is none to be seen.
c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  if (tensor.key_set().has(c10::DispatchKey::Python)) return nullptr;
  if (tensor.is_sparse()) return tensor._values().storage().unsafeGetStorageImpl();
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return impl.has_storage() ? impl.unsafe_storage().unsafeGetStorageImpl() : nullptr;
}

}  // namespace

Digest128 hash_tensor(const at::Tensor& tensor) { return hash_with_contents(tensor, nullptr, 0); }

TensorWatch::Identity::Identity(const at::Tensor& tensor) : address(tensor.unsafeGetTensorImpl()) {
  if (!tensor.defined()) return;
  version = version_of(*tensor.unsafeGetTensorImpl());
  storage_address = storage_of(tensor);
  if (storage_address == nullptr) return;
  storage.emplace(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage_of(tensor)));
}

bool TensorWatch::Identity::is_that_of(const at::Tensor& tensor) const {
  if (tensor.unsafeGetTensorImpl() != address) return false;
  return !tensor.defined() || (version_of(*tensor.unsafeGetTensorImpl()) == version &&
                               storage_of(tensor) == storage_address);
}

TensorWatch::Record::Record(const at::Tensor& watched) : identity(watched) {
  if (!watched.defined()) return;
  gradient = Identity(watched.unsafeGetTensorImpl()->grad());
  if (!watched.is_inference()) counter = watched.unsafeGetTensorImpl()->version_counter();
  is_opaque = module::is_opaque(watched);
  if (is_opaque) return;
  if (identity.storage_address != nullptr) data = identity.storage_address->data();
  dtype = watched.scalar_type();
  storage_offset = watched.storage_offset();
  sizes_and_strides.append(watched.sizes().begin(), watched.sizes().end());
  sizes_and_strides.append(watched.strides().begin(), watched.strides().end());
  is_conjugate = watched.is_conj();
  is_negative = watched.is_neg();
}

bool TensorWatch::Record::has_geometry_of(const c10::TensorImpl& now) const {
  const auto sizes = now.sizes();
  const auto strides = now.strides();
  const std::int64_t* known = sizes_and_strides.data();
  return sizes.size() + strides.size() == sizes_and_strides.size() &&
         std::equal(sizes.begin(), sizes.end(), known) &&
         std::equal(strides.begin(), strides.end(), known + sizes.size());
}

bool TensorWatch::Record::is_alive() const {
  return !counter.enabled() || (!counter.unique() && counter.current_version() == identity.version);
}

TensorWatch::TensorWatch(const std::vector<at::Tensor>& tensors, Hashing hashing,
                         const TensorWatch* before) {
  // The steps are counted before anything is read: the next comparison sees a step in between.
  steps_seen_ = optimizer_steps();
  if (before != nullptr && before->has_silent_change(tensors)) before = nullptr;
  records_.reserve(tensors.size());
  const auto effort =
      hashing == Hashing::kContents ? ByteSamples::Effort::kHigh : ByteSamples::Effort::kLow;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    // The identity is taken before the contents are read, for the same reason.
    Record record(tensor);
    if (hashing == Hashing::kContents && why_not_hashable(tensor) == nullptr) {
      if (before != nullptr && before->same_identity(i, tensor) && !before->was_stepped(i)) {
        record.digest = before->digest(i);
        contents_.add_from(before->contents_, i);
      } else {
        record.digest = hash_with_contents(tensor, &contents_, i);
      }
    }
    if (hashing == Hashing::kUncounted && is_hashed_around_a_run(tensor)) {
      record.digest = module::hash_tensor(tensor);
    }
    if (tensor.defined()) has_uncounted_ = has_uncounted_ || tensor.is_inference();
    if (record.data != nullptr) samples_.add(i, tensor, effort);
    records_.push_back(std::move(record));
  }
}

bool TensorWatch::same_identity(std::size_t index, const at::Tensor& tensor) const {
  if (index >= records_.size()) return false;
  const Record& record = records_[index];
  if (!record.identity.is_that_of(tensor)) return false;
  if (!tensor.defined()) return true;
  const c10::TensorImpl& now = *tensor.unsafeGetTensorImpl();
  if (!record.is_alive() || !record.gradient.is_that_of(now.grad())) return false;
  if (record.is_opaque) return true;
  const c10::StorageImpl* const storage = record.identity.storage_address;
  return (storage == nullptr || storage->data() == record.data) &&
         tensor.is_conj() == record.is_conjugate && tensor.is_neg() == record.is_negative &&
         now.storage_offset() == record.storage_offset &&
         c10::typeMetaToScalarType(now.dtype()) == record.dtype && record.has_geometry_of(now);
}

bool TensorWatch::was_stepped(std::size_t index) const {
  return was_stepped_since(steps_seen_.load(std::memory_order_relaxed),
                           records_[index].identity.address);
}

bool TensorWatch::was_any_stepped() const {
  const std::uint64_t now = optimizer_steps();
  if (now == steps_seen_.load(std::memory_order_relaxed)) return false;
  for (std::size_t i = 0; i < records_.size(); ++i) {
    if (was_stepped(i)) return true;
  }
  steps_seen_.store(now, std::memory_order_relaxed);
  return false;
}

bool TensorWatch::has_silent_change(const std::vector<at::Tensor>& tensors) const {
  if (contents_.has_changed()) return true;
  const std::size_t common = std::min(tensors.size(), records_.size());
  for (std::size_t i = 0; i < common; ++i) {
    // Samples of a tensor whose identity changed may point into freed memory.
    if (same_identity(i, tensors[i]) && !was_stepped(i) && !samples_.all_match(i)) return true;
  }
  return false;
}

std::optional<std::size_t> TensorWatch::find_change() const { return find_change_in_bytes({}); }

std::optional<std::size_t> TensorWatch::find_change_in_bytes(
    RotatingRead::Clock::duration run) const {
  if (records_.empty()) return std::nullopt;
  if (was_any_stepped()) return 0;
  const auto changed = samples_.find_change(turn_.fetch_add(1, std::memory_order_relaxed));
  return changed.has_value() ? changed : contents_.find_change(RotatingRead::Clock::now(), run);
}

bool TensorWatch::is_unchanged_after(std::chrono::microseconds run) const {
  // The caller may have replaced a tensor: its memory is held while it is read.
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> held;
  held.reserve(records_.size());
  for (const Record& record : records_) {
    if (record.data == nullptr) continue;
    held.push_back(record.identity.storage->lock());
    if (held.back() == nullptr || held.back()->data() != record.data) return false;
  }
  return !find_change_in_bytes(run).has_value();
}

bool TensorWatch::uncounted_matches(std::size_t index, const at::Tensor& tensor) const {
  return !is_hashed_around_a_run(tensor) || module::hash_tensor(tensor) == records_[index].digest;
}

bool TensorWatch::is_true_of(const std::vector<at::Tensor>& tensors) const {
  if (tensors.size() != records_.size()) return false;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!same_identity(i, tensors[i])) return false;
  }
  return !find_change().has_value();
}

}  // namespace modcache::module
