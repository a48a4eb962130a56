// SPDX-License-Identifier: Apache-2.0
#include "module/identity/attributes_hasher.h"

#include <ATen/core/class_type.h>

namespace modcache::module {

AttributeKind kind_of(const at::IValue& value) {
  if (value.isTensor()) return AttributeKind::kTensor;
  if (value.isObject()) {
    return value.toObjectRef().type()->is_module() ? AttributeKind::kObject
                                                   : AttributeKind::kContainer;
  }
  const bool is_container = value.isList() || value.isGenericDict() || value.isTuple();
  return is_container ? AttributeKind::kContainer : AttributeKind::kScalar;
}

void AttributesHasher::add_submodule(const std::string& path, std::size_t object,
                                     const std::string& class_mark) {
  hasher_.add(path);
  hasher_.add(static_cast<std::uint64_t>(AttributeKind::kObject));
  hasher_.add(static_cast<std::uint64_t>(object));
  hasher_.add(class_mark);
}

void AttributesHasher::add_value(const std::string& path, AttributeKind kind,
                                 const std::string& bytes) {
  hasher_.add(path);
  hasher_.add(static_cast<std::uint64_t>(kind));
  hasher_.add(bytes);
}

std::string fingerprint_of(const Digest128& code, const Digest128& attributes) {
  Xxh3Hasher hasher;
  hasher.add("modcache fingerprint 1");
  hasher.add(code.bytes());
  hasher.add(attributes.bytes());
  return hasher.digest().hex();
}

}  // namespace modcache::module
