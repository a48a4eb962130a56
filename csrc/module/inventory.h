// SPDX-License-Identifier: Apache-2.0
//
// Inventory: what a method can read or write of a TorchScript module, as it was at one moment:
// which objects its slots led to, which tensors, which plain values. Comparing it with the
// module again costs nanoseconds per slot and allocates nothing in the common case.
//
// Immutable, but for the sample cursor of its TensorWatch. Keeps no part of the module alive.
#pragma once

#include <ATen/core/ivalue.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "module/attributes_hasher.h"
#include "module/plain_value.h"
#include "module/source.h"
#include "module/tensor_watch.h"

namespace modcache::module {

using ObjectPtr = c10::intrusive_ptr<c10::ivalue::Object>;

class Inventory {
 public:
  // `before` (may be null) lends the digests of tensors that are still the same; pass null when
  // versions cannot be trusted.
  Inventory(const ObjectPtr& module, const Source& source, TensorWatch::Hashing hashing,
            const Inventory* before);

  // Nothing, or what differs: "parameter 'layer.weight'", "attribute 'n' of Counter", ...
  // kIdentity compares identities, versions and plain values; kSamples this turn's bytes too.
  enum class Depth { kIdentity, kSamples };
  struct Difference {
    std::string what;
    bool versions_lie = false;  // only the bytes showed it
  };
  std::optional<Difference> compare(const c10::ivalue::Object& module, Depth depth) const;

  // Around a run, after compare(): names a tensor that counts no versions and whose contents
  // changed since this was made with Hashing::kUncounted.
  bool has_uncounted() const { return tensors_->has_uncounted(); }
  std::optional<std::string> changed_uncounted() const;

  // Over which tensors require grad now. Nothing when the module holds other submodules, or
  // tensors at other places, than it did.
  struct RequiringGrad {
    std::uint64_t pattern = 0;  // 0 when none does
    std::int64_t count = 0;
  };
  std::optional<RequiringGrad> requiring_grad(const c10::ivalue::Object& module) const;

  // Digest over all that is read. REQUIRES: hashed, and why_not_hashable() is empty.
  Digest128 digest() const;
  // The same for each attribute that is read, by its path; tensors are told from other values.
  // REQUIRES: as digest().
  struct AttributeDigest {
    std::string path;
    bool is_tensor = false;
    Digest128 digest;
  };
  std::vector<AttributeDigest> attribute_digests() const;
  bool is_hashed() const { return is_hashed_; }
  // Null unless hashed.
  const std::shared_ptr<WatchedContents>& contents() const { return tensors_->contents(); }
  // `fresh` takes this one's place.
  void hand_over_to(const Inventory& fresh) const { tensors_->hand_over_to(*fresh.tensors_); }
  const std::string& why_not_hashable() const { return why_not_hashable_; }

  // The attributes in the order in which digest() takes those that are read. `path` leads from the
  // module to them: "layers.0.weight". Those of a submodule that lies at several paths are listed
  // for each; digest() takes the first.
  struct Attribute {
    std::string path;
    AttributeKind kind;
    bool is_read;
    bool is_written;         // by assignment: another value may come to lie here
    bool is_interface;       // kObject: another class may come to lie here
    std::size_t object;      // kObject: which of the module's objects
    std::string class_mark;  // kObject
    std::string first_path;  // of the same attribute; empty: this is it
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
    bool is_interface = false;     // kObject: another class may come to lie here
    std::size_t target = 0;        // kTensor: first tensor; kObject: index into objects_
    std::size_t tensor_count = 0;  // kTensor: 1; kContainer: any
    at::IValue scalar;             // kScalar
    std::string bytes;             // kScalar, kContainer: canonical form
    std::string path;
  };

  struct Walk;

  bool slot_is_same(const Slot& slot, const at::IValue& now) const;
  // REQUIRES: what leads to `value` was found unchanged.
  PlainValue written_down(const at::IValue& value) const;
  std::string describe(const Slot& slot) const;
  // Visits the tensors that the module holds now; false when its structure is another.
  template <typename Visit>
  bool for_each_tensor(Visit&& visit) const;

  // Never dereferenced before the slot that leads there was found unchanged. The first is the
  // module itself.
  std::vector<const c10::ivalue::Object*> objects_;
  std::vector<c10::ClassTypePtr> types_;
  std::map<c10::ClassTypePtr, std::string> class_marks_;  // says the same in every process
  std::vector<Slot> slots_;
  std::unique_ptr<const TensorWatch> tensors_;
  std::vector<std::size_t> slot_of_tensor_;
  bool is_hashed_ = false;
  std::string why_not_hashable_;
};

}  // namespace modcache::module
