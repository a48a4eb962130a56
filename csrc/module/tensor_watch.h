// SPDX-License-Identifier: Apache-2.0
//
// TensorWatch: a digest over the contents of a list of tensors that is cheap to ask for again.
//
// The contents are hashed once. After that each question compares identities (tensor, storage,
// data pointer, version counter, geometry, and of the gradient as much, since a new one foretells a
// write; storages by weak references, so that their addresses cannot come back under others) and a
// few bytes of every tensor on the CPU, which is what notices at once that a model was written
// without a trace (`.data`, fused optimizers). A write of few elements is noticed when it is these
// bytes' turn to be read (watched_contents.h). What it cannot see: writes without a version on an
// accelerator.
//
// Tensors that are not plain memory (sparse, opaque, nested) are compared by identity and version.
//
// A TensorWatch is immutable but for its sample cursor and for what watched_contents.h remembers of
// runs; any thread may ask it. It keeps no tensor alive.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "module/byte_samples.h"
#include "module/watched_contents.h"

namespace modcache::module {

// Why a tensor's contents cannot be hashed ("sparse", ...); null when they can.
const char* why_not_hashable(const at::Tensor& tensor);

// dtype, shape and bytes; the same whatever the strides and the device.
// REQUIRES: why_not_hashable(tensor) == nullptr.
Digest128 hash_tensor(const at::Tensor& tensor);

class TensorWatch {
 public:
  enum class Change { kNone, kIdentity, kSample };

  TensorWatch() = default;
  // Notes the identities and samples of `tensors`; with Hashing::kContents also hashes them,
  // reusing from `before` (may be null) the digests of tensors whose identity did not change,
  // unless bytes of any of those changed without a trace: then nothing is reused. kUncounted hashes
  // only tensors on the CPU that count no versions, very large ones excepted.
  enum class Hashing { kNone, kUncounted, kContents };
  TensorWatch(const std::vector<at::Tensor>& tensors, Hashing hashing, const TensorWatch* before);

  // Whether tensor `index` of the list is what it was, by identities and versions alone.
  bool same_identity(std::size_t index, const at::Tensor& tensor) const;

  // Whether the list is unchanged: the identities of all and this turn's samples.
  // `culprit`, if given, gets the index of the first that is not.
  Change compare(const std::vector<at::Tensor>& tensors, std::size_t* culprit = nullptr) const;

  // Compares every sample of those tensors whose identity is unchanged.
  bool all_samples_match(const std::vector<at::Tensor>& tensors) const;

  // Compares this turn's samples only. REQUIRES: the identities were found unchanged.
  bool samples_match(std::size_t* culprit = nullptr) const;

  // What is read on from call to call; null unless made with Hashing::kContents.
  const std::shared_ptr<WatchedContents>& contents() const { return contents_; }
  // `fresh`, with all contents hashed, takes this one's place: see WatchedContents.
  void hand_over_to(const TensorWatch& fresh) const;

  // Whether any of the tensors counts no versions, as those made under inference mode do not.
  bool has_uncounted() const { return has_uncounted_; }
  // Whether such a tensor has the contents that it had. REQUIRES: made with Hashing::kUncounted,
  // and the identity was found unchanged.
  bool uncounted_matches(std::size_t index, const at::Tensor& tensor) const;

  std::size_t size() const { return records_.size(); }
  // REQUIRES: made with Hashing::kContents, and the tensor's contents can be hashed.
  const Digest128& digest(std::size_t index) const { return records_[index].digest; }

 private:
  struct Gradient {
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage;
    const at::TensorImpl* address = nullptr;
    const c10::StorageImpl* storage_address = nullptr;
    std::uint32_t version = 0;

    Gradient() = default;
    explicit Gradient(const c10::TensorImpl& tensor);
    bool is_that_of(const c10::TensorImpl& tensor) const;
  };
  struct Record {
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage;
    const at::TensorImpl* tensor_address = nullptr;
    const c10::StorageImpl* storage_address = nullptr;
    const void* data = nullptr;
    std::uint32_t version = 0;
    // The tensor's own, shared with it: alone with its counter, a record knows that the tensor is
    // gone, and its address may be another's. (With weak references torch.utils.swap_tensors would
    // refuse it.)
    c10::VariableVersion counter{c10::VariableVersion::DISABLED};
    c10::ScalarType dtype = c10::ScalarType::Undefined;
    std::int64_t storage_offset = 0;
    c10::SmallVector<std::int64_t, 8> sizes_and_strides;
    bool is_conjugate = false;
    bool is_negative = false;
    bool is_opaque = false;
    Gradient gradient;
    Digest128 digest;

    explicit Record(const at::Tensor& watched);
    bool has_geometry_of(const c10::TensorImpl& tensor_now) const;
    bool has_counter_of_the_living() const;
  };

  // `lender`, unless null, knows the tensor as it is.
  void hash_or_borrow(Record& record, std::size_t index, const at::Tensor& tensor,
                      const TensorWatch* lender);
  // Whether no optimizer has stepped a tensor of the list since it was last found unchanged.
  bool no_step_since() const;

  std::vector<Record> records_;
  ByteSamples samples_;
  std::shared_ptr<WatchedContents> contents_;
  bool has_uncounted_ = false;
  bool has_borrowed_ = false;  // digests of the one before
  mutable std::atomic<std::uint64_t> turn_{0};
  mutable std::atomic<std::uint64_t> steps_seen_{0};
};

}  // namespace modcache::module
