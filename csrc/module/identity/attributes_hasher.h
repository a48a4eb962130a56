// SPDX-License-Identifier: Apache-2.0
//
// AttributesHasher: the digest over the attributes that a method reads, added in the order in which
// an Inventory finds them, and the fingerprint made from it and the code. There is one definition,
// as a module and its lowered form must have the same fingerprint.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/hash.h"

namespace modcache::module {

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

}  // namespace modcache::module
