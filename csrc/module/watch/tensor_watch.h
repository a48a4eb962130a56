// SPDX-License-Identifier: Apache-2.0
//
// TensorWatch: a digest over the contents of a list of tensors that is cheap to ask for again.
//
// The contents are hashed once. After that each question compares identities (tensor, storage, data
// pointer, version counter, geometry, and the same for the gradient, since a new one announces a
// write) and a few bytes of every tensor on the CPU. Storages are held by weak references, so that
// their addresses cannot be reused. The bytes notice at once that a model was written without a
// trace (`.data`, fused optimizers). A write to few elements is noticed when it is the turn of
// these bytes to be read (watched_contents.h). A write without a version on an accelerator is not
// noticed.
//
// Tensors that are not plain memory (sparse, opaque, nested) are compared by identity and version.
//
// A TensorWatch is immutable except for its sample cursor and for what watched_contents.h remembers
// of runs; any thread may ask it. It keeps no tensor alive.
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
#include "module/watch/byte_samples.h"
#include "module/watch/watched_contents.h"

namespace modcache::module {

// Returns why a tensor's contents cannot be hashed ("sparse", ...); null when they can.
const char* why_not_hashable(const at::Tensor& tensor);

// Returns a digest of dtype, shape and elements, whatever the strides and the device. REQUIRES:
// why_not_hashable(tensor) == nullptr.
Digest128 hash_tensor(const at::Tensor& tensor);

class TensorWatch {
 public:
  TensorWatch() = default;
  // Notes the identities and samples of `tensors`. With Hashing::kContents also hashes them,
  // reusing from `before` (may be null) the digests of tensors whose identity did not change. If
  // bytes of any of those changed without a trace, nothing is reused. kUncounted hashes only
  // tensors on the CPU that count no versions, except very large ones.
  enum class Hashing { kNone, kUncounted, kContents };
  TensorWatch(const std::vector<at::Tensor>& tensors, Hashing hashing, const TensorWatch* before);

  // Returns whether tensor `index` of the list has not changed, by identity and version alone.
  bool same_identity(std::size_t index, const at::Tensor& tensor) const;

  // Compares the identities of all tensors and this turn's samples.
  bool is_true_of(const std::vector<at::Tensor>& tensors) const;

  // Compares this turn's samples only, and returns a tensor whose samples differ, if there is one.
  // REQUIRES: the identities were found unchanged.
  std::optional<std::size_t> find_change() const;

  // The contents that calls go on checking; null unless made with Hashing::kContents.
  const std::shared_ptr<WatchedContents>& contents() const { return contents_; }
  // Tells the contents that `fresh`, with all contents hashed, replaces this one: see
  // WatchedContents.
  void hand_over_to(const TensorWatch& fresh) const;

  // Returns whether any of the tensors counts no versions, as those made under inference mode do
  // not.
  bool has_uncounted() const { return has_uncounted_; }
  // Returns whether such a tensor still has its contents. REQUIRES: made with Hashing::kUncounted,
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
    // The tensor's own counter, shared with it. When only the record still owns it, the tensor is
    // gone and its address may be another's. (A weak reference would do the same, but
    // torch.utils.swap_tensors refuses tensors that have one.)
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

  // `lender`, unless null, knows the tensor in its current state.
  void hash_or_borrow(Record& record, std::size_t index, const at::Tensor& tensor,
                      const TensorWatch* lender);
  // Compares every sample of those tensors whose identity is unchanged.
  bool all_samples_match(const std::vector<at::Tensor>& tensors) const;
  // Returns whether no optimizer has stepped a tensor of the list since it was last found
  // unchanged.
  bool no_step_since() const;

  std::vector<Record> records_;
  ByteSamples samples_;
  std::shared_ptr<WatchedContents> contents_;
  bool has_uncounted_ = false;
  bool has_borrowed_ = false;  // some digests are those of `before`
  mutable std::atomic<std::uint64_t> turn_{0};
  mutable std::atomic<std::uint64_t> steps_seen_{0};
};

}  // namespace modcache::module
