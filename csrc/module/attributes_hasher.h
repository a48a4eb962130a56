// SPDX-License-Identifier: Apache-2.0
//
// AttributesHasher: the digest over the attributes that a method reads, one after the other in the
// order in which an Inventory finds them, and the fingerprint that it gives together with the code.
// One definition, as a module and its lowered form have the same fingerprint.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/hash.h"

namespace modcache::module {

// The numbers are part of every fingerprint.
enum class AttributeKind : std::uint8_t { kTensor = 0, kObject = 1, kScalar = 2, kContainer = 3 };

// kObject: a submodule. Objects of other TorchScript classes are written down as containers.
AttributeKind kind_of(const at::IValue& value);

class AttributesHasher {
 public:
  // `object`: which of the module's objects it is; `class_mark`: what says the same of its class in
  // every process.
  void add_submodule(const std::string& path, std::size_t object, const std::string& class_mark);

  // Followed by add_tensor() for each tensor in it. `bytes`: its PlainValue's; of a tensor: none.
  void add_value(const std::string& path, AttributeKind kind, const std::string& bytes);
  void add_tensor(const Digest128& digest) { hasher_.add(digest.bytes()); }

  Digest128 digest() const { return hasher_.digest(); }

 private:
  Xxh3Hasher hasher_;
};

// 32 hexadecimal digits.
std::string fingerprint_of(const Digest128& code, const Digest128& attributes);

}  // namespace modcache::module
