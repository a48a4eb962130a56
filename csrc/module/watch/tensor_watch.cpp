// SPDX-License-Identifier: Apache-2.0
#include "module/watch/tensor_watch.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

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

// Returns null for a gradient without a storage.
const c10::StorageImpl* gradient_storage(const at::Tensor& gradient) {
  if (gradient.is_sparse()) return gradient._values().storage().unsafeGetStorageImpl();
  return gradient.has_storage() ? gradient.storage().unsafeGetStorageImpl() : nullptr;
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

// `chunks`, unless null, gets the same bytes as the hash of tensor `index`.
Digest128 hash_with_chunks(const at::Tensor& tensor, ContentChunks* chunks, std::size_t index) {
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
  // Add the chunks first: a write in between then differs from them in the next comparison.
  if (chunks == nullptr || !dense.is_alias_of(tensor)) {
    if (chunks != nullptr) chunks->add(index, tensor);
    hasher.update(bytes, dense.nbytes());
    return hasher.digest();
  }
  for (std::size_t at = 0; at < dense.nbytes(); at += ContentChunks::kChunkBytes) {
    const std::size_t size_bytes = std::min(ContentChunks::kChunkBytes, dense.nbytes() - at);
    chunks->add_dense(index, bytes + at, size_bytes);
    hasher.update(bytes + at, size_bytes);
  }
  return hasher.digest();
}

}  // namespace

Digest128 hash_tensor(const at::Tensor& tensor) { return hash_with_chunks(tensor, nullptr, 0); }

TensorWatch::Gradient::Gradient(const c10::TensorImpl& tensor) {
  const at::Tensor& gradient = tensor.grad();
  address = gradient.unsafeGetTensorImpl();
  if (!gradient.defined()) return;
  version = version_of(*gradient.unsafeGetTensorImpl());
  storage_address = gradient_storage(gradient);
  const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
  if (storage_address != nullptr) storage.emplace(values.storage().getWeakStorageImpl());
}

bool TensorWatch::Gradient::is_that_of(const c10::TensorImpl& tensor) const {
  const at::Tensor& gradient = tensor.grad();
  if (gradient.unsafeGetTensorImpl() != address) return false;
  if (!gradient.defined()) return true;
  return version_of(*gradient.unsafeGetTensorImpl()) == version &&
         gradient_storage(gradient) == storage_address;
}

TensorWatch::Record::Record(const at::Tensor& watched) {
  tensor_address = watched.unsafeGetTensorImpl();
  if (!watched.defined()) return;
  gradient = Gradient(*watched.unsafeGetTensorImpl());
  version = version_of(*watched.unsafeGetTensorImpl());
  if (!watched.is_inference()) counter = watched.unsafeGetTensorImpl()->version_counter();
  is_opaque = module::is_opaque(watched);
  if (is_opaque) return;
  if (watched.has_storage()) {
    storage.emplace(watched.storage().getWeakStorageImpl());
    storage_address = watched.storage().unsafeGetStorageImpl();
    data = storage_address->data();
  }
  dtype = watched.scalar_type();
  storage_offset = watched.storage_offset();
  sizes_and_strides.append(watched.sizes().begin(), watched.sizes().end());
  sizes_and_strides.append(watched.strides().begin(), watched.strides().end());
  is_conjugate = watched.is_conj();
  is_negative = watched.is_neg();
}

TensorWatch::TensorWatch(const std::vector<at::Tensor>& tensors, Hashing hashing,
                         const TensorWatch* before) {
  // Count the steps before anything is read: a step in between is then seen by the next comparison.
  steps_seen_ = optimizer_steps();
  if (before != nullptr && !before->all_samples_match(tensors)) before = nullptr;
  records_.reserve(tensors.size());
  const auto effort =
      hashing == Hashing::kContents ? ByteSamples::Effort::kHigh : ByteSamples::Effort::kLow;
  if (hashing == Hashing::kContents) contents_ = std::make_shared<WatchedContents>();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    Record record(tensor);
    // Identity first, contents second: a write in between is seen by the next comparison.
    if (hashing == Hashing::kContents && why_not_hashable(tensor) == nullptr) {
      const bool unchanged =
          before != nullptr && i < before->size() && before->same_identity(i, tensor);
      hash_or_borrow(record, i, tensor, unchanged ? before : nullptr);
    }
    if (hashing == Hashing::kUncounted && is_hashed_around_a_run(tensor)) {
      record.digest = module::hash_tensor(tensor);
    }
    if (tensor.defined()) has_uncounted_ = has_uncounted_ || tensor.is_inference();
    if (record.data != nullptr) samples_.add(i, tensor, effort);
    records_.push_back(std::move(record));
  }
}

void TensorWatch::hash_or_borrow(Record& record, std::size_t index, const at::Tensor& tensor,
                                 const TensorWatch* lender) {
  if (lender == nullptr || lender->contents_ == nullptr) {
    record.digest = hash_with_chunks(tensor, &contents_->chunks(), index);
  } else {
    has_borrowed_ = true;
    record.digest = lender->digest(index);
    contents_->chunks().add_from(lender->contents_->chunks(), index);
  }
  if (tensor.defined()) contents_->keep_in_view(tensor);
}

void TensorWatch::hand_over_to(const TensorWatch& fresh) const {
  if (contents_ == nullptr || fresh.contents_ == nullptr) return;
  using Found = WatchedContents::Found;
  const bool is_same =
      std::equal(records_.begin(), records_.end(), fresh.records_.begin(), fresh.records_.end(),
                 [](const Record& a, const Record& b) { return a.digest == b.digest; });
  contents_->hand_over_to(*fresh.contents_, !is_same              ? Found::kOther
                                            : fresh.has_borrowed_ ? Found::kSameAsFarAsRead
                                                                  : Found::kSame);
}

bool TensorWatch::Record::has_geometry_of(const c10::TensorImpl& now) const {
  const auto sizes = now.sizes();
  const auto strides = now.strides();
  const std::int64_t* known = sizes_and_strides.data();
  return sizes.size() + strides.size() == sizes_and_strides.size() &&
         std::equal(sizes.begin(), sizes.end(), known) &&
         std::equal(strides.begin(), strides.end(), known + sizes.size());
}

bool TensorWatch::Record::has_counter_of_the_living() const {
  return !counter.enabled() || (!counter.unique() && counter.current_version() == version);
}

bool TensorWatch::same_identity(std::size_t index, const at::Tensor& tensor) const {
  const Record& record = records_[index];
  c10::TensorImpl& now = *tensor.unsafeGetTensorImpl();
  if (&now != record.tensor_address) return false;
  if (!tensor.defined()) return true;
  if (!record.has_counter_of_the_living()) return false;
  if (!record.gradient.is_that_of(now)) return false;
  if (record.is_opaque) return version_of(now) == record.version;
  const c10::StorageImpl* const storage =
      now.has_storage() ? now.unsafe_storage().unsafeGetStorageImpl() : nullptr;
  if (storage != record.storage_address) return false;
  if (storage != nullptr && storage->data() != record.data) return false;
  if (tensor.is_conj() != record.is_conjugate || tensor.is_neg() != record.is_negative)
    return false;
  return version_of(now) == record.version && now.storage_offset() == record.storage_offset &&
         c10::typeMetaToScalarType(now.dtype()) == record.dtype && record.has_geometry_of(now);
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
  if (!no_step_since() || (contents_ != nullptr && contents_->is_refuted())) return false;
  const std::size_t common = std::min(tensors.size(), records_.size());
  for (std::size_t i = 0; i < common; ++i) {
    // Samples of a tensor whose identity changed may point into freed memory.
    if (same_identity(i, tensors[i]) && !samples_.all_match(i)) return false;
  }
  return true;
}

std::optional<std::size_t> TensorWatch::find_change() const {
  if (records_.empty()) return std::nullopt;
  if (!no_step_since()) return 0;
  const auto changed = samples_.find_change(turn_.fetch_add(1, std::memory_order_relaxed));
  return changed.has_value() || contents_ == nullptr ? changed : contents_->find_change();
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
