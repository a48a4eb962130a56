// SPDX-License-Identifier: Apache-2.0
#include "store/pack/pack_format.h"

#include "base/bytes.h"
#include "store/entry/entry_id.h"
#include "store/segment/record.h"

namespace modcache::store {
namespace {

constexpr std::uint64_t kPackMagic = 0x4b50636d;  // "mcPK"
constexpr std::size_t kChecksumSizeBytes = 8;
constexpr std::size_t kPageHeadSizeBytes = 16;
constexpr std::size_t kSlotSizeBytes = 16;
static_assert(kPageHeadSizeBytes + kPackSlotsPerPage * kSlotSizeBytes == kPackPageSizeBytes);

std::uint64_t number_at(std::string_view bytes, std::size_t offset) {
  return read_number<std::uint64_t>(bytes.data() + offset);
}

// Returns the checksum of everything after the checksum itself.
std::uint64_t checksum_of(std::string_view bytes, std::uint64_t seed) {
  bytes.remove_prefix(kChecksumSizeBytes);
  return xxh3_64(bytes.data(), bytes.size(), seed);
}

// Returns whether the footer describes parts that fit a file of this size. No sum can overflow, as
// each part was compared with the size before.
bool is_possible(const PackFooter& footer, std::uint64_t size_bytes) {
  if (footer.size_bytes != size_bytes || footer.table_offset > size_bytes) return false;
  const std::uint64_t rest = size_bytes - footer.table_offset;
  if (footer.table_offset % kPackPageSizeBytes != 0 ||
      footer.table_offset < kSegmentHeaderSizeBytes || rest < kPackFooterSizeBytes ||
      footer.pages != (rest - kPackFooterSizeBytes) / kPackPageSizeBytes ||
      (rest - kPackFooterSizeBytes) % kPackPageSizeBytes != 0) {
    return false;
  }
  const std::uint64_t slots = footer.pages * kPackSlotsPerPage;
  return footer.homes > 0 && footer.homes <= slots && footer.homes <= kMostPackHomes &&
         footer.entries <= slots && footer.notes <= slots && footer.contexts <= slots;
}

}  // namespace

std::string encode_pack_footer(const PackFooter& footer) {
  std::string bytes(kPackFooterSizeBytes, '\0');
  write_number((std::uint64_t{kPackFormatVersion} << 32) | kPackMagic, bytes.data() + 8);
  write_number(footer.segment_id, bytes.data() + 16);
  write_number(footer.size_bytes, bytes.data() + 24);
  write_number(footer.table_offset, bytes.data() + 32);
  write_number(footer.pages, bytes.data() + 40);
  write_number(footer.homes, bytes.data() + 48);
  write_number(footer.entries, bytes.data() + 56);
  write_number(footer.notes, bytes.data() + 64);
  write_number(footer.contexts, bytes.data() + 72);
  write_number(footer.created_at_us, bytes.data() + 80);
  write_number(checksum_of(bytes, 0), bytes.data());
  return bytes;
}

Result<PackFooter> decode_pack_footer(std::string_view bytes, std::uint64_t size_bytes) {
  if (bytes.size() != kPackFooterSizeBytes || (number_at(bytes, 8) & 0xffffffff) != kPackMagic) {
    return Status::invalid_argument("it does not end as a pack does");
  }
  if (number_at(bytes, 0) != checksum_of(bytes, 0)) {
    return Status::corruption("its footer fails its checksum");
  }
  const std::uint64_t version = number_at(bytes, 8) >> 32;
  if (version != kPackFormatVersion) {
    return Status::unsupported_version("it has format version " + std::to_string(version) +
                                       ", this modcache reads only version " +
                                       std::to_string(kPackFormatVersion));
  }
  PackFooter footer;
  footer.segment_id = number_at(bytes, 16);
  footer.size_bytes = number_at(bytes, 24);
  footer.table_offset = number_at(bytes, 32);
  footer.pages = number_at(bytes, 40);
  footer.homes = number_at(bytes, 48);
  footer.entries = number_at(bytes, 56);
  footer.notes = number_at(bytes, 64);
  footer.contexts = number_at(bytes, 72);
  footer.created_at_us = static_cast<std::int64_t>(number_at(bytes, 80));
  if (!is_possible(footer, size_bytes)) {
    return Status::corruption("its footer is of a file of another size");
  }
  return footer;
}

std::uint64_t pack_home_of(const Digest128& address, std::uint64_t homes) {
  return ((address.low >> 32) * homes) >> 32;
}

std::string encode_pack_page(std::uint64_t number, const std::vector<PackSlot>& slots,
                             std::uint64_t salt) {
  std::string page(kPackPageSizeBytes, '\0');
  write_number(number, page.data() + 8);
  std::size_t offset = kPageHeadSizeBytes;
  for (const PackSlot& slot : slots) {
    write_number(slot.tag, page.data() + offset);
    write_number(slot.offset, page.data() + offset + 8);
    offset += kSlotSizeBytes;
  }
  write_number(checksum_of(page, salt), page.data());
  return page;
}

Status check_pack_page(std::string_view page, std::uint64_t number, std::uint64_t salt) {
  if (number_at(page, 0) == checksum_of(page, salt) && number_at(page, 8) == number) {
    return Status::ok();
  }
  return Status::corruption("a page of a pack's table fails its checksum");
}

PackSlot pack_slot_in(std::string_view page, std::size_t slot) {
  const std::size_t offset = kPageHeadSizeBytes + slot * kSlotSizeBytes;
  return {number_at(page, offset), number_at(page, offset + 8)};
}

const Context& pack_notes_context() {
  constexpr const char* kDescription = "modcache notes";
  static const Context* const context =
      new Context{blake2b_128(kDescription), std::string(), kDescription};
  return *context;
}

}  // namespace modcache::store
