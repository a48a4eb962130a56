// SPDX-License-Identifier: Apache-2.0
#include "backends/objects/layout.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/little_endian.h"

namespace modcache::backends {
namespace {

constexpr std::size_t kCountAt = 16;

Place packed_at(std::uint32_t offset) {
  Place place;
  place.kind = PlaceKind::kPacked;
  place.time_us = 1'700'000'000'000'000 + offset;
  place.writer = 0x0123456789abcdefULL + offset % 2;
  place.pack = 7;
  place.offset = offset;
  place.size = 2048;
  return place;
}

Place of_kind(PlaceKind kind) {
  Place place;
  place.kind = kind;
  place.time_us = 5;
  return place;
}

std::vector<PlacedName> some_names() {
  return {{"modcache/b", packed_at(1)},
          {"modcache/a", packed_at(2)},
          {"modcache/a", of_kind(PlaceKind::kRemoved)},
          {"modcache/ctl/x", of_kind(PlaceKind::kControl)},
          {"other", of_kind(PlaceKind::kWhole)},
          {std::string(kMostNameBytes, 'z'), packed_at(4)}};
}

using Decoded = std::vector<std::pair<std::string, Place>>;
Status decode(std::string_view bytes, Decoded* decoded = nullptr) {
  return decode_segment(bytes, [&](std::string_view name, const Place& place) {
    if (decoded != nullptr) decoded->emplace_back(name, place);
  });
}

// What a stranger would send who knows how checksums are made.
std::string resealed(std::string bytes) {
  write_number(xxh3_64(bytes.data() + 8, bytes.size() - 8), bytes.data());
  return bytes;
}

TEST(SegmentTest, comes_back_sorted_by_name) {
  Decoded decoded;
  ASSERT_TRUE(decode(encode_segment(some_names()), &decoded).is_ok());
  ASSERT_EQ(decoded.size(), 6u);
  EXPECT_EQ(decoded[0], std::make_pair(std::string("modcache/a"), packed_at(2)));
  EXPECT_EQ(decoded[1], std::make_pair(std::string("modcache/a"), of_kind(PlaceKind::kRemoved)));
  EXPECT_EQ(decoded[2], std::make_pair(std::string("modcache/b"), packed_at(1)));
  EXPECT_EQ(decoded[3],
            std::make_pair(std::string("modcache/ctl/x"), of_kind(PlaceKind::kControl)));
  EXPECT_EQ(decoded[5].first.size(), kMostNameBytes);
}

TEST(SegmentTest, may_be_empty) { EXPECT_TRUE(decode(encode_segment({})).is_ok()); }

TEST(SegmentTest, cut_anywhere_is_damaged) {
  const std::string whole = encode_segment(some_names());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_EQ(decode(whole.substr(0, size)).code(), StatusCode::kCorruption) << size;
    if (size < 24) continue;
    EXPECT_EQ(decode(resealed(whole.substr(0, size))).code(), StatusCode::kCorruption) << size;
  }
  EXPECT_EQ(decode(resealed(whole + "x")).code(), StatusCode::kCorruption);
}

TEST(SegmentTest, with_any_byte_changed_is_damaged) {
  const std::string whole = encode_segment(some_names());
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 0x55);
    EXPECT_FALSE(decode(changed).is_ok()) << at;
  }
}

TEST(SegmentTest, with_any_byte_changed_and_sealed_again_reads_within_its_bounds) {
  const std::string whole = encode_segment(some_names());
  for (std::size_t at = 8; at < whole.size(); ++at) {
    for (const int byte : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      std::string changed = whole;
      changed[at] = static_cast<char>(byte);
      Decoded decoded;
      (void)decode(resealed(changed), &decoded);
      for (const auto& [name, place] : decoded) {
        EXPECT_LE(name.size(), kMostNameBytes);
        EXPECT_GE(place.time_us, 0);
      }
    }
  }
}

TEST(SegmentTest, absurd_counts_cost_nothing) {
  for (const std::size_t at : {kCountAt, kCountAt + 4}) {
    std::string bytes = encode_segment(some_names());
    write_number(std::numeric_limits<std::uint32_t>::max(), bytes.data() + at);
    EXPECT_EQ(decode(resealed(bytes)).code(), StatusCode::kCorruption);
  }
}

TEST(SegmentTest, of_a_newer_version_says_so) {
  std::string bytes = encode_segment(some_names());
  bytes[12] = 2;
  EXPECT_EQ(decode(resealed(bytes)).code(), StatusCode::kUnsupportedVersion);
}

TEST(HeadTest, comes_back_and_belongs_to_its_writer) {
  const Head head{42, {{1, 32, 1000}, {33, 33, 60}}};
  const auto decoded = decode_head(encode_head(head), 42);
  ASSERT_TRUE(decoded.is_ok());
  ASSERT_EQ(decoded.value().segments.size(), 2u);
  EXPECT_EQ(decoded.value().segments[0].last, 32u);
  EXPECT_EQ(decoded.value().segments[1].size_bytes, 60u);
  EXPECT_EQ(decode_head(encode_head(head), 43).status().code(), StatusCode::kCorruption);
}

TEST(HeadTest, with_a_fault_is_damaged) {
  const std::string whole = encode_head({42, {{1, 32, 1000}, {33, 33, 60}}});
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(decode_head(whole.substr(0, size), 42).is_ok()) << size;
    if (size < 24) continue;
    EXPECT_FALSE(decode_head(resealed(whole.substr(0, size)), 42).is_ok()) << size;
  }
  for (const SegmentRange& wrong :
       {SegmentRange{0, 1, 1}, SegmentRange{5, 4, 1}, SegmentRange{1, 1, 0xffffffffU}}) {
    EXPECT_FALSE(decode_head(encode_head({42, {wrong}}), 42).is_ok());
  }
  std::string absurd = whole;
  write_number(std::numeric_limits<std::uint32_t>::max(), absurd.data() + kCountAt);
  EXPECT_FALSE(decode_head(resealed(absurd), 42).is_ok());
  EXPECT_FALSE(decode_head(encode_writers({}), 42).is_ok());
}

TEST(WritersTest, come_back_and_are_bounded) {
  const auto decoded = decode_writers(encode_writers({{1, 10}, {2, 20}}));
  ASSERT_TRUE(decoded.is_ok());
  ASSERT_EQ(decoded.value().size(), 2u);
  EXPECT_EQ(decoded.value()[1].announced_us, 20);
  const std::string whole = encode_writers({{1, 10}, {2, 20}});
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(decode_writers(whole.substr(0, size)).is_ok()) << size;
  }
  EXPECT_FALSE(decode_writers(encode_writers(std::vector<ListedWriter>(kMostWriters + 1))).is_ok());
}

TEST(ControlTest, tells_an_empty_value_from_none) {
  std::string_view value = "?";
  const std::string empty = encode_control("");
  EXPECT_TRUE(decode_control(empty, value));
  EXPECT_EQ(value, "");
  const std::string full = encode_control("x");
  EXPECT_TRUE(decode_control(full, value));
  EXPECT_EQ(value, "x");
  EXPECT_FALSE(decode_control(encode_removed_control(), value));
  EXPECT_FALSE(decode_control("", value));
}

TEST(PathTest, is_the_same_in_every_version) {
  EXPECT_EQ(head_path(0xabc), "/w/0000000000000abc/head");
  EXPECT_EQ(segment_path(0xabc, {1, 32, 0}), "/w/0000000000000abc/1-32");
  EXPECT_EQ(pack_path(0xabc, 7), "/p/0000000000000abc/7");
  EXPECT_EQ(whole_path(Digest128{1, 2}), "/v/00000000000000010000000000000002");
  EXPECT_EQ(control_path(Digest128{1, 2}), "/c/00000000000000010000000000000002");
}

}  // namespace
}  // namespace modcache::backends
