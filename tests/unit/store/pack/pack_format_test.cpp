// SPDX-License-Identifier: Apache-2.0
#include "store/pack/pack_format.h"

#include <gtest/gtest.h>

#include <string>

namespace modcache::store {
namespace {

constexpr std::uint64_t kSalt = 77;

PackFooter footer_of_one_page() {
  PackFooter footer;
  footer.segment_id = 5;
  footer.table_offset = kPackPageSizeBytes;
  footer.pages = 1;
  footer.homes = 100;
  footer.entries = 40;
  footer.notes = 2;
  footer.contexts = 3;
  footer.created_at_us = -1;
  footer.size_bytes = 2 * kPackPageSizeBytes + kPackFooterSizeBytes;
  return footer;
}

StatusCode code_of(const PackFooter& footer) {
  return decode_pack_footer(encode_pack_footer(footer), footer.size_bytes).status().code();
}

TEST(PackFooterTest, is_read_back) {
  const PackFooter written = footer_of_one_page();
  const std::string bytes = encode_pack_footer(written);
  ASSERT_EQ(bytes.size(), kPackFooterSizeBytes);
  const auto footer = decode_pack_footer(bytes, written.size_bytes);
  ASSERT_TRUE(footer.is_ok());
  EXPECT_EQ(footer.value().segment_id, 5u);
  EXPECT_EQ(footer.value().table_offset, written.table_offset);
  EXPECT_EQ(footer.value().homes, 100u);
  EXPECT_EQ(footer.value().entries, 40u);
  EXPECT_EQ(footer.value().notes, 2u);
  EXPECT_EQ(footer.value().contexts, 3u);
  EXPECT_EQ(footer.value().created_at_us, -1);
}

TEST(PackFooterTest, every_flipped_bit_is_noticed) {
  const PackFooter written = footer_of_one_page();
  const std::string bytes = encode_pack_footer(written);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(decode_pack_footer(flipped, written.size_bytes).is_ok()) << bit;
  }
}

TEST(PackFooterTest, what_cannot_be_is_refused_whatever_its_checksum_says) {
  const auto with = [](auto change) {
    PackFooter footer = footer_of_one_page();
    change(footer);
    return code_of(footer);
  };
  EXPECT_EQ(with([](PackFooter&) {}), StatusCode::kOk);
  EXPECT_EQ(with([](PackFooter& f) { f.table_offset += 64; }), StatusCode::kCorruption);
  EXPECT_EQ(with([](PackFooter& f) { f.table_offset = 0; }), StatusCode::kCorruption);
  EXPECT_EQ(with([](PackFooter& f) { f.table_offset = ~std::uint64_t{0} - 4095; }),
            StatusCode::kCorruption);
  EXPECT_EQ(with([](PackFooter& f) { f.pages = 2; }), StatusCode::kCorruption);
  EXPECT_EQ(with([](PackFooter& f) { f.pages = ~std::uint64_t{0}; }), StatusCode::kCorruption);
  EXPECT_EQ(with([](PackFooter& f) { f.homes = 0; }), StatusCode::kCorruption);
  EXPECT_EQ(with([](PackFooter& f) { f.homes = 256; }), StatusCode::kCorruption);
  EXPECT_EQ(with([](PackFooter& f) { f.entries = ~std::uint64_t{0}; }), StatusCode::kCorruption);
  const std::string bytes = encode_pack_footer(footer_of_one_page());
  EXPECT_EQ(decode_pack_footer(bytes, 1).status().code(), StatusCode::kCorruption);
  EXPECT_EQ(decode_pack_footer(bytes.substr(1), 1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(decode_pack_footer(std::string(128, '\0'), 128).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(PackPageTest, its_slots_are_read_back_and_the_others_are_free) {
  const std::string page = encode_pack_page(3, {{1, 64}, {2, 128}}, kSalt);
  ASSERT_EQ(page.size(), kPackPageSizeBytes);
  EXPECT_TRUE(check_pack_page(page, 3, kSalt).is_ok());
  EXPECT_EQ(pack_slot_in(page, 1).tag, 2u);
  EXPECT_EQ(pack_slot_in(page, 1).offset, 128u);
  EXPECT_EQ(pack_slot_in(page, 2).offset, 0u);
  EXPECT_EQ(pack_slot_in(page, kPackSlotsPerPage - 1).offset, 0u);
}

TEST(PackPageTest, another_page_of_this_pack_or_one_of_another_is_none) {
  std::string page = encode_pack_page(3, {{1, 64}}, kSalt);
  EXPECT_EQ(check_pack_page(page, 2, kSalt).code(), StatusCode::kCorruption);
  EXPECT_EQ(check_pack_page(page, 3, kSalt + 1).code(), StatusCode::kCorruption);
  page[20] = static_cast<char>(page[20] ^ 1);
  EXPECT_EQ(check_pack_page(page, 3, kSalt).code(), StatusCode::kCorruption);
}

TEST(PackHomeTest, homes_follow_the_addresses_and_lie_within) {
  const std::uint64_t homes = 1000;
  EXPECT_EQ(pack_home_of({0, 0}, homes), 0u);
  EXPECT_EQ(pack_home_of({~std::uint64_t{0}, std::uint64_t{1} << 63}, homes), 500u);
  EXPECT_EQ(pack_home_of({0, ~std::uint64_t{0}}, homes), 999u);
  EXPECT_EQ(pack_home_of({0, ~std::uint64_t{0}}, kMostPackHomes), kMostPackHomes - 1);
}

}  // namespace
}  // namespace modcache::store
