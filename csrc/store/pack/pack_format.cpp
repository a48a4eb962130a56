// SPDX-License-Identifier: Apache-2.0
#include "store/pack/pack_format.h"

#include "store/segment/record.h"

namespace modcache::store {
namespace {

constexpr std::uint64_t kMagic = 0x4b50636d;  // "mcPK"
constexpr std::size_t kChecksumSizeBytes = 8;
constexpr std::size_t kPageHeadSizeBytes = 16;
constexpr std::size_t kSlotSizeBytes = 16;
static_assert(kPageHeadSizeBytes + kPackSlotsPerPage * kSlotSizeBytes == kPackPageSizeBytes);

// Little-endian on every machine.
void put_number(std::string& bytes, std::size_t offset, std::uint64_t number) {
  for (std::size_t i = 0; i < sizeof number; ++i) {
    bytes[offset + i] = static_cast<char>((number >> (8 * i)) & 0xff);
  }
}

std::uint64_t number_at(std::string_view bytes, std::size_t offset) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < sizeof number; ++i) {
    number |= std::uint64_t{static_cast<unsigned char>(bytes[offset + i])} << (8 * i);
  }
  return number;
}

// Of all that follows it.
std::uint64_t checksum_of(std::string_view bytes, std::uint64_t seed) {
  bytes.remove_prefix(kChecksumSizeBytes);
  return xxh3_64(bytes.data(), bytes.size(), seed);
}

// Whether the parts of the file lie as the footer says, in a file of this size. No sum can
// overflow: each part was compared with the size before.
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
  put_number(bytes, 8, (std::uint64_t{kPackFormatVersion} << 32) | kMagic);
  put_number(bytes, 16, footer.segment_id);
  put_number(bytes, 24, footer.size_bytes);
  put_number(bytes, 32, footer.table_offset);
  put_number(bytes, 40, footer.pages);
  put_number(bytes, 48, footer.homes);
  put_number(bytes, 56, footer.entries);
  put_number(bytes, 64, footer.notes);
  put_number(bytes, 72, footer.contexts);
  put_number(bytes, 80, static_cast<std::uint64_t>(footer.created_at_us));
  put_number(bytes, 0, checksum_of(bytes, 0));
  return bytes;
}

Result<PackFooter> decode_pack_footer(std::string_view bytes, std::uint64_t size_bytes) {
  if (bytes.size() != kPackFooterSizeBytes || (number_at(bytes, 8) & 0xffffffff) != kMagic) {
    return Status::invalid_argument("it does not end as a pack does");
  }
  if (number_at(bytes, 0) != checksum_of(bytes, 0)) {
    return Status::corruption("its footer fails its checksum");
  }
  const std::uint64_t version = number_at(bytes, 8) >> 32;
  if (version > kPackFormatVersion) {
    return Status::unsupported_version("it has format version " + std::to_string(version) +
                                       ", this modcache reads up to " +
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
  put_number(page, 8, number);
  std::size_t offset = kPageHeadSizeBytes;
  for (const PackSlot& slot : slots) {
    put_number(page, offset, slot.tag);
    put_number(page, offset + 8, slot.offset);
    offset += kSlotSizeBytes;
  }
  put_number(page, 0, checksum_of(page, salt));
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
