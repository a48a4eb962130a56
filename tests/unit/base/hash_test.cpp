// SPDX-License-Identifier: Apache-2.0
#include "base/hash.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace modcache {
namespace {

// Everything on disk was made with these values; others would make every directory unreadable.
TEST(HashTest, gives_the_published_values) {
  EXPECT_EQ(xxh3_64("", 0), 0x2d06800538d394c2ULL);
  EXPECT_EQ(xxh3_128("").hex(), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(xxh3_128("abc").hex(), "06b05ab6733a618578af5f94892f3950");
  EXPECT_EQ(blake2b_128("").hex(), "cae66941d9efbd404e4d88758ea67670");
  EXPECT_EQ(blake2b_128("abc").hex(), "cf4ab791c62b8d2b2109c90275287816");
}

TEST(HashTest, depends_on_the_seed) { EXPECT_NE(xxh3_64("abc", 3, 0), xxh3_64("abc", 3, 1)); }

TEST(Digest128Test, has_big_endian_bytes_and_comes_back_from_them) {
  const Digest128 digest{0x0102030405060708ULL, 0x090a0b0c0d0e0f10ULL};
  EXPECT_EQ(digest.hex(), "0102030405060708090a0b0c0d0e0f10");
  EXPECT_EQ(digest.bytes().front(), '\x01');
  EXPECT_EQ(Digest128::from_bytes(digest.bytes()), digest);
}

TEST(Xxh3HasherTest, hashes_pieces_like_the_whole) {
  Xxh3Hasher hasher;
  hasher.update("ab", 2);
  hasher.update("c", 1);
  EXPECT_EQ(hasher.digest(), xxh3_128("abc"));
}

TEST(Xxh3HasherTest, tells_added_pieces_apart) {
  const auto digest_of = [](std::initializer_list<std::string> pieces) {
    Xxh3Hasher hasher;
    for (const std::string& piece : pieces) hasher.add(piece);
    return hasher.digest().hex();
  };
  const std::set<std::string> digests = {digest_of({"ab", "c"}), digest_of({"a", "bc"}),
                                         digest_of({"abc"}), digest_of({"abc", ""}), digest_of({})};
  EXPECT_EQ(digests.size(), 5u);
}

TEST(Blake2bHasherTest, gives_the_published_values_whatever_the_parts) {
  EXPECT_EQ(Blake2bHasher().hex(),
            "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8");
  for (const std::size_t cut : {0, 1, 2, 3}) {
    Blake2bHasher hasher;
    hasher.update(std::string_view("abc").substr(0, cut));
    hasher.update(std::string_view("abc").substr(cut));
    EXPECT_EQ(hasher.hex(), "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
  }
}

TEST(Blake2bHasherTest, goes_on_after_a_digest_was_taken) {
  Blake2bHasher hasher;
  hasher.update("ab");
  const std::string first = hasher.hex();
  EXPECT_EQ(hasher.hex(), first);
  hasher.update("c");
  EXPECT_EQ(hasher.hex(), "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
}

}  // namespace
}  // namespace modcache
