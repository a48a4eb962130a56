// SPDX-License-Identifier: Apache-2.0
#include "store/segment/record.h"

#include <gtest/gtest.h>

#include <string>

#include "store/store.h"
#include "support/sealing.h"

namespace modcache::store {
namespace {

constexpr std::uint64_t kSalt = 0x123456789abcdef0;

RecordHead example_head() {
  RecordHead head;
  head.sequence = 0x1122334455667788;
  head.context = {0x0102030405060708, 0x090a0b0c0d0e0f10};
  head.run_us = 4711;
  head.stored_at_us = 1700000000000000;
  head.payload_size_bytes = 2048;
  head.payload_checksum = 0xfeedfacecafebeef;
  return head;
}

std::string example_bytes() {
  return encode_record_head(example_head(), "the key", "the header", kSalt);
}

TEST(RecordTest, comes_back_as_it_was) {
  const std::string bytes = example_bytes();
  auto decoded = decode_record_head(bytes, kSalt);
  ASSERT_TRUE(decoded.is_ok()) << decoded.status().message();
  const RecordHead& head = decoded.value().fixed;
  EXPECT_EQ(head.kind, RecordKind::kEntry);
  EXPECT_EQ(head.sequence, 0x1122334455667788u);
  EXPECT_EQ(head.context, example_head().context);
  EXPECT_EQ(head.run_us, 4711);
  EXPECT_EQ(head.stored_at_us, 1700000000000000);
  EXPECT_EQ(head.payload_size_bytes, 2048u);
  EXPECT_EQ(head.payload_checksum, 0xfeedfacecafebeef);
  EXPECT_EQ(decoded.value().key, "the key");
  EXPECT_EQ(decoded.value().header, "the header");
  EXPECT_EQ(bytes.size(), head.payload_offset());
}

// The layout of FORMAT.md, byte for byte.
TEST(RecordTest, has_the_layout_that_is_written_down) {
  const std::string bytes = example_bytes();
  EXPECT_EQ(bytes.substr(8, 4), std::string("\x01\x01\x01\x01", 4));  // mark, versions, kind
  EXPECT_EQ(bytes.substr(12, 4), "mcCR");
  EXPECT_EQ(bytes.substr(16, 8), "\x88\x77\x66\x55\x44\x33\x22\x11");
  EXPECT_EQ(bytes.substr(24, 16), example_head().context.bytes());
  EXPECT_EQ(bytes.substr(56, 8), std::string("\x00\x08\x00\x00\x00\x00\x00\x00", 8));
  EXPECT_EQ(bytes.substr(72, 8), std::string("\x07\x00\x00\x00\x0a\x00\x00\x00", 8));
  EXPECT_EQ(bytes.substr(80, 17), "the keythe header");
  EXPECT_EQ(bytes.substr(97), std::string(31, '\0'));
}

TEST(RecordTest, costs_little_beside_a_small_payload) {
  RecordHead head = example_head();
  head.key_size_bytes = 10;
  head.header_size_bytes = 50;
  EXPECT_LE(head.record_size_bytes() - head.payload_size_bytes, 192u);
}

TEST(RecordTest, is_refused_with_any_bit_flipped) {
  const std::string bytes = example_bytes();
  const std::size_t covered = kRecordFixedSizeBytes + 17;
  for (std::size_t bit = 0; bit < 8 * covered; ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_EQ(decode_record_head(flipped, kSalt).status().code(), StatusCode::kCorruption)
        << "bit " << bit;
  }
}

TEST(RecordTest, is_refused_when_cut_short_anywhere) {
  const std::string bytes = example_bytes();
  for (std::size_t size = kRecordFixedSizeBytes; size < kRecordFixedSizeBytes + 17; ++size) {
    EXPECT_FALSE(decode_record_head(bytes.substr(0, size), kSalt).is_ok()) << size;
  }
}

// Otherwise bytes in a stranger's cached value could pass for a record of another segment.
TEST(RecordTest, is_refused_under_another_salt) {
  EXPECT_FALSE(decode_record_head(example_bytes(), kSalt + 1).is_ok());
}

TEST(RecordTest, is_refused_for_impossible_numbers_before_anything_is_read) {
  const auto with_number = [](std::size_t offset, std::size_t size, std::uint64_t number) {
    std::string bytes = example_bytes();
    for (std::size_t i = 0; i < size; ++i) {
      bytes[offset + i] = static_cast<char>((number >> (8 * i)) & 0xff);
    }
    return peek_record_head(bytes).status().code();
  };
  EXPECT_EQ(with_number(56, 8, ~std::uint64_t{0}), StatusCode::kCorruption);
  EXPECT_EQ(with_number(72, 4, kMaxKeySizeBytes + 1), StatusCode::kCorruption);
  EXPECT_EQ(with_number(76, 4, kMaxHeaderSizeBytes + 1), StatusCode::kCorruption);
  EXPECT_EQ(with_number(16, 8, kMaxSequence + 1), StatusCode::kCorruption);
  EXPECT_EQ(with_number(9, 1, 2), StatusCode::kCorruption);   // format version
  EXPECT_EQ(with_number(10, 1, 4), StatusCode::kCorruption);  // kind
  EXPECT_EQ(with_number(8, 1, 0), StatusCode::kCorruption);   // byte order
}

TEST(SegmentHeaderTest, comes_back_as_it_was_and_is_refused_with_any_bit_flipped) {
  const std::string bytes = encode_segment_header({kSalt, 42, 1700000000000000});
  ASSERT_EQ(bytes.size(), kSegmentHeaderSizeBytes);
  auto header = decode_segment_header(bytes);
  ASSERT_TRUE(header.is_ok());
  EXPECT_EQ(header.value().salt, kSalt);
  EXPECT_EQ(header.value().id, 42u);
  EXPECT_EQ(header.value().created_at_us, 1700000000000000);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_EQ(decode_segment_header(flipped).status().code(), StatusCode::kCorruption) << bit;
  }
  EXPECT_FALSE(decode_segment_header(bytes.substr(0, 63)).is_ok());
}

TEST(SegmentHeaderTest, tells_another_version_from_damage) {
  for (const char version : {1, 3}) {
    std::string bytes = encode_segment_header({kSalt, 42, 0});
    bytes[9] = version;
    testing::seal(bytes, 0, bytes.size());
    EXPECT_EQ(decode_segment_header(bytes).status().code(), StatusCode::kUnsupportedVersion);
  }
}

TEST(RecordTest, is_known_again_by_sequence_context_and_key) {
  const std::string bytes = example_bytes();
  const RecordHead head = example_head();
  const std::string context = head.context.bytes();
  EXPECT_EQ(record_sequence(bytes.data()), head.sequence);
  EXPECT_TRUE(is_head_of(bytes.data(), head.sequence, context, "the key"));
  EXPECT_FALSE(is_head_of(bytes.data(), head.sequence + 1, context, "the key"));
  EXPECT_FALSE(is_head_of(bytes.data(), head.sequence, std::string(16, 'x'), "the key"));
  EXPECT_FALSE(is_head_of(bytes.data(), head.sequence, context, "the kex"));
  EXPECT_FALSE(is_head_of(bytes.data(), head.sequence, context, "the ke")) << "the key is longer";
  EXPECT_FALSE(is_head_of(bytes.data(), head.sequence, context, "the keyt")) << "header, not key";
}

}  // namespace
}  // namespace modcache::store
