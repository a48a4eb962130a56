// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "module/identity/identity.h"

namespace modcache::module {
namespace {

using Kind = AttributeKind;

Digest128 digest_of(const std::string& path, Kind kind, const std::string& bytes) {
  AttributesHasher hasher;
  hasher.add_value(path, kind, bytes);
  return hasher.digest();
}

TEST(AttributesHasherTest, tells_kinds_of_values_apart) {
  EXPECT_EQ(kind_of(at::IValue(at::Tensor())), Kind::kTensor);
  EXPECT_EQ(kind_of(at::IValue(std::int64_t{1})), Kind::kScalar);
  EXPECT_EQ(kind_of(at::IValue("text")), Kind::kScalar);
  EXPECT_EQ(kind_of(at::IValue(c10::List<std::int64_t>())), Kind::kContainer);
  EXPECT_EQ(kind_of(c10::ivalue::Tuple::create(1, 2)), Kind::kContainer);
}

TEST(AttributesHasherTest, tells_path_kind_and_bytes_apart) {
  const Digest128 digest = digest_of("a", Kind::kScalar, "i1;");
  EXPECT_EQ(digest_of("a", Kind::kScalar, "i1;"), digest);
  EXPECT_NE(digest_of("b", Kind::kScalar, "i1;"), digest);
  EXPECT_NE(digest_of("a", Kind::kContainer, "i1;"), digest);
  EXPECT_NE(digest_of("a", Kind::kScalar, "i2;"), digest);
}

TEST(AttributesHasherTest, makes_a_fingerprint_of_code_and_attributes) {
  const Digest128 code = digest_of("code", Kind::kScalar, "");
  const Digest128 attributes = digest_of("attributes", Kind::kScalar, "");
  EXPECT_EQ(fingerprint_of(code, attributes).size(), 32u);
  EXPECT_NE(fingerprint_of(code, attributes), fingerprint_of(attributes, code));
}

}  // namespace
}  // namespace modcache::module
