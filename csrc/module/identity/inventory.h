// SPDX-License-Identifier: Apache-2.0
//
// Inventory: everything that a method can read or write of a TorchScript module, as it was at one
// moment: the objects that its slots led to, tensors and plain values. Comparing it with the module
// again costs nanoseconds per slot and usually allocates nothing.
//
// Immutable except for the sample cursor of its TensorWatch. Keeps no part of the module alive.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "module/code/plain_value.h"
#include "module/code/source.h"
#include "module/watch/tensor_watch.h"
#include "tensor/input.h"

namespace modcache::module {

using ObjectPtr = c10::intrusive_ptr<c10::ivalue::Object>;

// AttributesHasher: the digest over the attributes that a method reads, added in the order in which
// an Inventory finds them, and the fingerprint made from it and the code. There is one definition,
// as a module and its lowered form must have the same fingerprint.
// The numbers are part of every fingerprint.
enum class AttributeKind : std::uint8_t { kTensor = 0, kObject = 1, kScalar = 2, kContainer = 3 };

// Returns kObject for a submodule. Objects of other TorchScript classes count as containers.
AttributeKind kind_of(const at::IValue& value);

class AttributesHasher {
 public:
  // `object` is the number of the module's object. `class_mark` represents its class, and is the
  // same in every process.
  void add_submodule(const std::string& path, std::size_t object, const std::string& class_mark);

  // Adds a value; add_tensor() must follow for each tensor in it. `bytes` are those of its
  // PlainValue; empty for a tensor.
  void add_value(const std::string& path, AttributeKind kind, const std::string& bytes);
  void add_tensor(const Digest128& digest) { hasher_.add(digest.bytes()); }

  Digest128 digest() const { return hasher_.digest(); }

 private:
  Xxh3Hasher hasher_;
};

// Returns 32 hexadecimal digits.
std::string fingerprint_of(const Digest128& code, const Digest128& attributes);

class Inventory {
 public:
  // `before` (may be null) lends the digests of tensors that have not changed. Pass null when
  // versions cannot be trusted.
  Inventory(const ObjectPtr& module, const Source& source, TensorWatch::Hashing hashing,
            const Inventory* before);

  // Returns nothing, or what differs: "parameter 'layer.weight'", "attribute 'n' of Counter", ...
  // kIdentity compares identities, versions and plain values; kSamples also this turn's samples of
  // bytes.
  enum class Depth { kIdentity, kSamples };
  std::optional<std::string> compare(const c10::ivalue::Object& module, Depth depth) const;

  // For the time around a run, after compare(): returns the name of a tensor that counts no
  // versions and whose contents changed since this was made with Hashing::kUncounted.
  bool has_uncounted() const { return tensors_->has_uncounted(); }
  std::optional<std::string> changed_uncounted() const;

  // Returns which tensors require grad now; nothing when the module's submodules or tensors are no
  // longer where they were.
  std::optional<tensor::RequiringGrad> requiring_grad(const c10::ivalue::Object& module) const;

  // The digest over everything that is read. REQUIRES: hashed, and why_not_hashable() is empty.
  Digest128 digest() const;
  // A digest for each attribute that is read, by its path; tensors are told from other values.
  // REQUIRES: as digest().
  struct AttributeDigest {
    std::string path;
    bool is_tensor = false;
    Digest128 digest;
  };
  std::vector<AttributeDigest> attribute_digests() const;
  bool is_hashed() const { return is_hashed_; }
  const std::shared_ptr<const TensorWatch>& tensors() const { return tensors_; }
  const std::string& why_not_hashable() const { return why_not_hashable_; }

  // Lists the attributes; digest() takes those that are read in this order. `path` leads from the
  // module to the attribute: "layers.0.weight". Attributes of a submodule at several paths are
  // listed for each path, and digest() takes the first.
  struct Attribute {
    std::string path;
    AttributeKind kind;
    bool is_read;
    bool is_written;         // by assignment, which may replace it
    bool is_interface;       // kObject: an object of another class may replace it
    std::size_t object;      // kObject: the number of the module's object
    std::string class_mark;  // kObject
    std::string first_path;  // the first path of the same attribute; empty: this is the first
  };
  std::vector<Attribute> attributes() const;

 private:
  using Kind = AttributeKind;

  struct Slot {
    std::size_t owner = 0;  // index into objects_
    std::size_t index = 0;  // of the slot in its owner
    Kind kind = Kind::kScalar;
    bool is_read = false;
    bool is_written = false;
    bool is_interface = false;     // kObject: an object of another class may replace it
    std::size_t target = 0;        // kTensor: first tensor; kObject: index into objects_
    std::size_t tensor_count = 0;  // kTensor: 1; kContainer: any
    at::IValue scalar;             // kScalar
    std::string bytes;             // kScalar, kContainer: serialized
    std::string path;
  };

  struct Walk;

  bool slot_is_same(const Slot& slot, const at::IValue& now) const;
  // Serializes `value`. REQUIRES: the slots that lead to it were found unchanged.
  PlainValue written_down(const at::IValue& value) const;
  std::string describe(const Slot& slot) const;
  // Visits the tensors that the module holds now; returns false when its structure has changed.
  template <typename Visit>
  bool for_each_tensor(Visit&& visit) const;

  // An object is only dereferenced after the slot that leads to it was found unchanged. The first
  // is the module itself.
  std::vector<const c10::ivalue::Object*> objects_;
  std::vector<c10::ClassTypePtr> types_;
  std::map<c10::ClassTypePtr, std::string> class_marks_;  // the same in every process
  std::vector<Slot> slots_;
  std::shared_ptr<const TensorWatch> tensors_;
  std::vector<std::size_t> slot_of_tensor_;
  bool is_hashed_ = false;
  std::string why_not_hashable_;
};

}  // namespace modcache::module
