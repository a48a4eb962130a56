// SPDX-License-Identifier: Apache-2.0
#include "backends/redis/chunks.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/hash.h"

namespace modcache::backends {
namespace {

std::string value_of_size(std::size_t size_bytes) {
  std::string value(size_bytes, '\0');
  for (std::size_t i = 0; i < size_bytes; i += 997) value[i] = static_cast<char>(i % 251);
  return value;
}

// Puts the pieces together again; nothing: one of them was refused.
std::optional<std::string> joined(const ChunkedHead& head, const std::string& value) {
  std::string all;
  for (std::size_t chunk = 0; chunk < head.chunks(); ++chunk) {
    const std::string stored = encode_chunk(head, value, chunk);
    const auto piece = decode_chunk(head, chunk, stored);
    if (!piece.has_value()) return std::nullopt;
    all += *piece;
  }
  return all;
}

TEST(ChunksTest, the_pieces_of_a_value_are_the_value) {
  for (const std::size_t size : {std::size_t{1}, kChunkBytes - 1, kChunkBytes, kChunkBytes + 1,
                                 2 * kChunkBytes, 3 * kChunkBytes + 17}) {
    const std::string value = value_of_size(size);
    const ChunkedHead head{42, size};
    EXPECT_EQ(head.chunks(), (size - 1) / kChunkBytes + 1);
    EXPECT_EQ(joined(head, value), value);
  }
}

TEST(ChunksTest, a_head_says_what_was_put_into_it) {
  const auto head = decode_chunked_head(encode_chunked_head({~std::uint64_t{0}, 12'345'678}));
  ASSERT_TRUE(head.has_value());
  EXPECT_EQ(head->write, ~std::uint64_t{0});
  EXPECT_EQ(head->size_bytes, 12'345'678u);
}

TEST(ChunksTest, other_values_and_damaged_heads_are_no_heads) {
  const std::string bytes = encode_chunked_head({42, 5'000'000});
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    EXPECT_FALSE(decode_chunked_head(damaged).has_value()) << i;
    EXPECT_FALSE(decode_chunked_head(std::string(bytes, 0, i)).has_value()) << i;
  }
  EXPECT_FALSE(decode_chunked_head(bytes + "x").has_value());
  EXPECT_FALSE(decode_chunked_head("").has_value());
  EXPECT_FALSE(decode_chunked_head("mcRR and the rest of a record...").has_value());
}

// Whoever reads would ask for so many pieces, and make room for them.
TEST(ChunksTest, a_head_of_an_absurd_size_is_refused_also_with_a_good_checksum) {
  for (const std::uint64_t size :
       {std::uint64_t{0}, std::uint64_t{remote::kMostValueBytes} + 1, ~std::uint64_t{0}}) {
    std::string bytes = encode_chunked_head({42, 1});
    write_number(size, bytes.data() + 16);
    write_number(xxh3_64(bytes.data(), 24), bytes.data() + 24);
    EXPECT_FALSE(decode_chunked_head(bytes).has_value()) << size;
  }
  EXPECT_TRUE(decode_chunked_head(encode_chunked_head({42, remote::kMostValueBytes})).has_value());
}

TEST(ChunksTest, a_piece_of_another_write_place_or_size_is_refused) {
  const std::size_t size = 2 * kChunkBytes + 5;
  const std::string value = value_of_size(size);
  const ChunkedHead head{42, size};
  const std::string first = encode_chunk(head, value, 0);
  EXPECT_TRUE(decode_chunk(head, 0, first).has_value());
  EXPECT_FALSE(decode_chunk({43, size}, 0, first).has_value()) << "of another writer";
  EXPECT_FALSE(decode_chunk(head, 1, first).has_value()) << "in another place";
  EXPECT_FALSE(decode_chunk(head, 2, first).has_value()) << "the last is shorter";
  EXPECT_FALSE(decode_chunk(head, 0, std::string_view(first).substr(1)).has_value());
  EXPECT_FALSE(decode_chunk(head, 0, first + "x").has_value());
  EXPECT_FALSE(decode_chunk(head, 0, "").has_value());
  EXPECT_FALSE(decode_chunk({42, kChunkBytes - 1}, 0, first).has_value());
}

}  // namespace
}  // namespace modcache::backends
