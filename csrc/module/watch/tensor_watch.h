// SPDX-License-Identifier: Apache-2.0
//
// TensorWatch: digests of a list of tensors, and a cheap comparison that tells whether they still
// are true.
//
// The contents are hashed once. After that each call compares identities (tensor, storage, data
// pointer, version counter, geometry, and the same of the gradient, since a new one announces a
// write) and a few bytes of every tensor on the CPU, and asks whether an optimizer stepped one.
// The bytes show at once that a whole model was written without a trace (`.data`, fused
// optimizers). A write to few elements is found when the rotating re-read reaches them. A write
// without a version on an accelerator is not found.
//
// Tensors that are not plain memory (sparse, opaque, nested) are compared by identity and version.
//
// Immutable except for the cursors of its samples and of the re-read. Thread-safe. Keeps no tensor
// alive; storages are held by weak references, so that their addresses cannot be reused.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/hash.h"
#include "module/watch/byte_samples.h"
#include "module/watch/rotating_read.h"

namespace modcache::module {

// Returns why a tensor's contents cannot be hashed ("sparse", ...); null when they can.
const char* why_not_hashable(const at::Tensor& tensor);

// Returns a digest of dtype, shape and elements, whatever the strides and the device. REQUIRES:
// why_not_hashable(tensor) == nullptr.
Digest128 hash_tensor(const at::Tensor& tensor);

class TensorWatch {
 public:
  TensorWatch() = default;
  // Records the identities and samples of `tensors`. With Hashing::kContents also hashes them,
  // except for those whose digests `before` (may be null) has: their identity is unchanged, and no
  // optimizer has stepped them. If bytes of any of those changed, all are hashed. kUncounted hashes
  // only tensors on the CPU that count no versions, except very large ones. REQUIRES: `before` was
  // made with Hashing::kContents.
  enum class Hashing { kNone, kUncounted, kContents };
  TensorWatch(const std::vector<at::Tensor>& tensors, Hashing hashing, const TensorWatch* before);

  // Returns whether tensor `index` of the list has not changed, by identity and version alone.
  bool same_identity(std::size_t index, const at::Tensor& tensor) const;

  // Compares the identities of all tensors, and then find_change().
  bool is_true_of(const std::vector<at::Tensor>& tensors) const;

  // Compares this turn's samples, reads on, and returns a tensor that has changed or was stepped,
  // if there is one. REQUIRES: the identities were found unchanged.
  std::optional<std::size_t> find_change() const;

  // For the time after a run and before its result is stored: returns whether no optimizer has
  // stepped a tensor, all storages have their memory, and find_change() finds nothing. Versions are
  // for the caller to compare, as only it has the tensors. `run` is the time that the run took.
  bool is_unchanged_after(std::chrono::microseconds run) const;

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
  // A tensor's object, storage and version at one moment.
  struct Identity {
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage;
    const c10::StorageImpl* storage_address = nullptr;
    const c10::TensorImpl* address = nullptr;
    std::uint32_t version = 0;

    Identity() = default;
    explicit Identity(const at::Tensor& tensor);
    bool is_that_of(const at::Tensor& tensor) const;
  };
  struct Record {
    Identity identity;
    Identity gradient;
    // The tensor's own counter, shared with it. When only the record still owns it, the tensor is
    // gone and its address may be another's. (A weak reference would do the same, but
    // torch.utils.swap_tensors refuses tensors that have one.)
    c10::VariableVersion counter{c10::VariableVersion::DISABLED};
    const void* data = nullptr;  // of the storage
    c10::ScalarType dtype = c10::ScalarType::Undefined;
    std::int64_t storage_offset = 0;
    c10::SmallVector<std::int64_t, 8> sizes_and_strides;
    bool is_conjugate = false;
    bool is_negative = false;
    bool is_opaque = false;
    Digest128 digest;

    explicit Record(const at::Tensor& watched);
    bool has_geometry_of(const c10::TensorImpl& tensor_now) const;
    bool is_alive() const;
  };

  bool was_stepped(std::size_t index) const;
  bool was_any_stepped() const;
  // Returns whether bytes changed of a tensor that has no other trace of a write.
  bool has_silent_change(const std::vector<at::Tensor>& tensors) const;
  std::optional<std::size_t> find_change_in_bytes(RotatingRead::Clock::duration run) const;

  std::vector<Record> records_;
  ByteSamples samples_;
  RotatingRead contents_;  // empty unless made with Hashing::kContents
  bool has_uncounted_ = false;
  mutable std::atomic<std::uint64_t> turn_{0};
  // As many steps as the digests are known to be true after.
  mutable std::atomic<std::uint64_t> steps_seen_{0};
};

}  // namespace modcache::module
