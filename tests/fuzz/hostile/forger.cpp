// SPDX-License-Identifier: Apache-2.0
#include "fuzz/hostile/forger.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/hash.h"
#include "fuzz/sealed.h"
#include "store/pack/pack_format.h"
#include "store/segment/record.h"

namespace modcache::fuzz {
namespace {

constexpr std::size_t kMapHeaderBytes = 4096;
constexpr std::size_t kMapSlotBytes = 32;

struct Field {
  std::size_t offset;
  std::size_t width;
};

// Of a record's head, without its two checksums and its magic.
constexpr Field kRecordFields[] = {{8, 1},  {9, 1},  {10, 1}, {11, 1}, {16, 8}, {24, 8},
                                   {32, 8}, {40, 8}, {48, 8}, {56, 8}, {72, 4}, {76, 4}};
constexpr Field kSegmentFields[] = {{9, 1}, {10, 2}, {16, 8}, {24, 8}, {32, 8}, {40, 8}};
constexpr Field kFooterFields[] = {{12, 4}, {16, 8}, {24, 8}, {32, 8}, {40, 8},
                                   {48, 8}, {56, 8}, {64, 8}, {72, 8}, {80, 8}};
constexpr Field kControlFields[] = {{64, 8},  {128, 8}, {192, 8}, {256, 8}, {384, 8}, {392, 8},
                                    {400, 8}, {408, 8}, {416, 8}, {448, 8}, {456, 8}, {512, 8}};
// Those under the checksum, then those that change while the map is in use.
constexpr Field kMapFields[] = {{24, 8},  {56, 8},  {64, 8},  {72, 8}, {128, 8},
                                {136, 8}, {144, 8}, {152, 8}, {160, 8}};

std::uint64_t number_at(std::string_view bytes, std::size_t offset, std::size_t width = 8) {
  std::uint64_t number = 0;
  if (offset + width <= bytes.size()) std::memcpy(&number, bytes.data() + offset, width);
  return number;
}

// As IndexTable does it: a check of tag, sequence and place above the sequence's 48 bits.
std::uint64_t checked_sequence(std::uint64_t tag, std::uint64_t sequence, std::uint64_t place) {
  constexpr std::uint64_t kMostSequence = (std::uint64_t{1} << 48) - 1;
  sequence &= kMostSequence;
  std::uint64_t mixed = tag * 0x9e3779b97f4a7c15;
  mixed = (mixed ^ (mixed >> 29) ^ sequence) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ (mixed >> 32) ^ place) * 0x94d049bb133111eb;
  return (mixed & ~kMostSequence) | sequence;
}

}  // namespace

std::vector<std::uint64_t> record_offsets(std::string_view bytes, std::size_t end) {
  std::vector<std::uint64_t> offsets;
  std::size_t at = store::kSegmentHeaderSizeBytes;
  while (at + store::kRecordFixedSizeBytes <= end) {
    auto head = store::peek_record_head(bytes.substr(at));
    const bool is_within = head.is_ok() && head.value().record_size_bytes() <= end - at;
    if (is_within) offsets.push_back(at);
    at += is_within ? head.value().record_size_bytes() : store::kRecordAlignmentBytes;
  }
  return offsets;
}

std::uint64_t Forger::odd_number(std::uint64_t number) {
  const std::uint64_t odd[] = {0,
                               1,
                               63,
                               64,
                               0x7f,
                               0xff,
                               0x7fffffff,
                               0xffffffff,
                               std::uint64_t{1} << below(64),
                               (std::uint64_t{1} << 46) + below(3) - 1,
                               (std::uint64_t{1} << 48) + below(3) - 1,
                               ~std::uint64_t{0} >> 1,
                               ~std::uint64_t{0},
                               ~std::uint64_t{0} - below(200)};
  switch (below(4)) {
    case 0: return odd[below(std::size(odd))];
    case 1: return number + below(129) - 64;
    case 2: return number ^ std::uint64_t{1} << below(64);
    default: return below(2) == 0 ? random_() : number * 2;
  }
}

void Forger::put_number(std::string& bytes, std::size_t offset, std::uint64_t number,
                        std::size_t width) {
  if (offset + width <= bytes.size()) std::memcpy(bytes.data() + offset, &number, width);
}

// A key, a header or a payload: single bytes, what is no UTF-8, and numbers in the middle of it.
void Forger::change_text(std::string& bytes, std::size_t begin, std::size_t size) {
  if (size == 0) return;
  const std::size_t at = begin + below(size);
  const std::size_t width = std::size_t{1} << below(4);
  switch (below(4)) {
    case 0: bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8))); break;
    case 1: bytes[at] = static_cast<char>(0x80 + below(128)); break;
    case 2: bytes[at] = '\0'; break;
    default:
      if (at + width <= begin + size) {
        put_number(bytes, at, odd_number(number_at(bytes, at, width)), width);
      }
  }
}

void Forger::change_record(std::string& bytes, std::size_t begin, std::size_t end,
                           std::uint64_t salt) {
  auto head = store::peek_record_head(std::string_view(bytes).substr(begin, end - begin));
  if (!head.is_ok()) return;
  const store::RecordHead& fixed = head.value();
  const std::size_t header = begin + store::kRecordFixedSizeBytes + fixed.key_size_bytes;
  const Field& field = kRecordFields[below(std::size(kRecordFields))];
  switch (below(6)) {
    case 0:
    case 1:
      put_number(bytes, begin + field.offset,
                 odd_number(number_at(bytes, begin + field.offset, field.width)), field.width);
      break;
    case 2: change_text(bytes, begin + store::kRecordFixedSizeBytes, fixed.key_size_bytes); break;
    case 3: change_text(bytes, header, fixed.header_size_bytes); break;
    case 4: change_text(bytes, begin + fixed.payload_offset(), fixed.payload_size_bytes); break;
    default: {  // another record's, or a part of it
      const auto offsets = record_offsets(bytes, end);
      if (offsets.empty()) return;
      const std::size_t other = offsets[below(offsets.size())];
      const std::size_t size = std::min({static_cast<std::size_t>(fixed.record_size_bytes()),
                                         end - other, 1 + static_cast<std::size_t>(below(400))});
      const std::string piece = bytes.substr(other, size);
      bytes.replace(begin, piece.size(), piece);
    }
  }
  testing::seal_record(bytes, begin, end, salt, below(8) != 0);
}

void Forger::change_records(std::string& bytes, std::size_t end) {
  const std::uint64_t salt = number_at(bytes, 16);
  for (std::uint64_t times = 1 + below(3); times > 0; --times) {
    const auto offsets = record_offsets(std::string_view(bytes), end);
    if (offsets.empty()) return;
    change_record(bytes, offsets[below(offsets.size())], end, salt);
  }
}

void Forger::change_segment_header(std::string& bytes, std::size_t end) {
  const auto offsets = record_offsets(bytes, end);
  const Field& field = kSegmentFields[below(std::size(kSegmentFields))];
  put_number(bytes, field.offset, odd_number(number_at(bytes, field.offset, field.width)),
             field.width);
  testing::seal(bytes, 0, store::kSegmentHeaderSizeBytes);
  if (below(4) == 0) return;
  for (const std::uint64_t at : offsets) {
    testing::seal_record(bytes, at, end, number_at(bytes, 16), /*with_payload=*/false);
  }
}

std::string Forger::forged_segment(std::string bytes) {
  if (bytes.size() < store::kSegmentHeaderSizeBytes) return bytes;
  if (below(12) == 0) {
    change_segment_header(bytes, bytes.size());
  } else {
    change_records(bytes, bytes.size());
  }
  return bytes;
}

void Forger::change_page(std::string& page, const std::vector<std::uint64_t>& offsets) {
  for (std::uint64_t times = 1 + below(4); times > 0; --times) {
    const std::size_t slot = 16 + 16 * below(store::kPackSlotsPerPage);
    switch (below(4)) {
      case 0: put_number(page, slot, random_(), 8); break;
      case 1:
        if (!offsets.empty()) put_number(page, slot + 8, offsets[below(offsets.size())], 8);
        break;
      case 2: put_number(page, slot + 8, odd_number(number_at(page, slot + 8)), 8); break;
      default: page.replace(slot, 16, page, 16 + 16 * below(store::kPackSlotsPerPage), 16);
    }
  }
}

std::string Forger::forged_pack(std::string bytes) {
  const std::size_t tail = bytes.size() - store::kPackFooterSizeBytes;
  const std::size_t table = number_at(bytes, tail + 32);
  const std::size_t pages = number_at(bytes, tail + 40);
  const std::uint64_t kind = below(10);
  if (kind == 0) {
    change_segment_header(bytes, table);
  } else if (kind < 5) {
    change_records(bytes, table);
  } else if (kind < 8 && pages > 0) {
    const std::size_t number = below(pages);
    const std::size_t at = table + number * store::kPackPageSizeBytes;
    std::string page = bytes.substr(at, store::kPackPageSizeBytes);
    change_page(page, record_offsets(bytes, table));
    testing::seal(page, 0, page.size(), number_at(bytes, 16));
    bytes.replace(at, page.size(), page);
  } else {
    for (std::uint64_t times = 1 + below(2); times > 0; --times) {
      const Field& field = kFooterFields[below(std::size(kFooterFields))];
      put_number(bytes, tail + field.offset,
                 odd_number(number_at(bytes, tail + field.offset, field.width)), field.width);
    }
    testing::seal(bytes, tail, store::kPackFooterSizeBytes);
  }
  return bytes;
}

std::string Forger::forged_control(std::string bytes) {
  for (std::uint64_t times = 1 + below(3); times > 0; --times) {
    if (below(12) == 0) {  // a mode, or a version, with its echo
      const std::size_t at = below(2) == 0 ? 320 : 8;
      const std::uint64_t number = below(5);
      put_number(bytes, at, number, 4);
      put_number(bytes, at + 4, ~number, 4);
      continue;
    }
    const Field& field = kControlFields[below(std::size(kControlFields))];
    put_number(bytes, field.offset, odd_number(number_at(bytes, field.offset)), field.width);
  }
  return bytes;
}

std::string Forger::forged_map(std::string bytes, std::uint64_t database_inode) {
  if (bytes.size() < kMapHeaderBytes) return bytes;
  put_number(bytes, 48, database_inode, 8);
  const std::uint64_t segments = number_at(bytes, 72);
  const std::size_t slots = (kMapHeaderBytes + 8 * segments + 4095) / 4096 * 4096;
  std::vector<std::size_t> taken;
  for (std::size_t at = slots; at + kMapSlotBytes <= bytes.size(); at += kMapSlotBytes) {
    if (number_at(bytes, at + 8) != 0) taken.push_back(at);
  }
  for (std::uint64_t times = 1 + below(4); times > 0; --times) {
    const std::uint64_t kind = below(6);
    if (kind == 0) {
      const Field& field = kMapFields[below(std::size(kMapFields))];
      put_number(bytes, field.offset, odd_number(number_at(bytes, field.offset)), field.width);
    } else if (kind == 1) {  // the list of segments
      const std::size_t at = kMapHeaderBytes + 8 * below(4);
      put_number(bytes, at, odd_number(number_at(bytes, at)), 8);
    } else if (!taken.empty()) {
      const std::size_t at = taken[below(taken.size())];
      const std::size_t word = 8 * below(4);
      const std::size_t other = taken[below(taken.size())];
      put_number(
          bytes, at + word,
          kind < 4 ? odd_number(number_at(bytes, at + word)) : number_at(bytes, other + word), 8);
      put_number(bytes, at + 8,
                 checked_sequence(number_at(bytes, at), number_at(bytes, at + 8),
                                  number_at(bytes, at + 16)),
                 8);
    }
  }
  set_checksum(bytes, 16, xxh3_64(bytes.data() + 24, 128 - 24));
  return bytes;
}

}  // namespace modcache::fuzz
