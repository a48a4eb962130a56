// SPDX-License-Identifier: Apache-2.0
//
// Bytes of a pack besides its records (FORMAT.md has the grammar): the pages of its table, and the
// footer. Pure functions over memory, as in record.h: what comes from disk is believed only after
// its bounds and checksum were checked.
//
// Format version history
//  1: first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "store/store.h"

namespace modcache::store {

inline constexpr std::uint32_t kPackFormatVersion = 1;
inline constexpr std::size_t kPackFooterSizeBytes = 128;
inline constexpr std::size_t kPackPageSizeBytes = 4096;
inline constexpr std::size_t kPackSlotsPerPage = 255;
inline constexpr std::uint64_t kMostPackHomes = 0xffffffff;
// From its home a slot is at most that many pages away. Only keys that were made to collide come
// near it.
inline constexpr std::uint64_t kMostPackPagesOfLookup = 64;

struct PackFooter {
  std::uint64_t segment_id = 0;  // of the segment header that the file begins with
  std::uint64_t size_bytes = 0;  // of the whole file
  std::uint64_t table_offset = 0;
  std::uint64_t pages = 0;
  std::uint64_t homes = 0;  // slots in which an address may be at home: the first of all
  std::uint64_t entries = 0;
  std::uint64_t notes = 0;
  std::uint64_t contexts = 0;
  std::int64_t created_at_us = 0;
};

std::string encode_pack_footer(const PackFooter& footer);
// Of a file of `size_bytes`, which `bytes` are the last of. kInvalidArgument: no pack's.
// kCorruption: of one that was damaged. kUnsupportedVersion: of a newer one.
Result<PackFooter> decode_pack_footer(std::string_view bytes, std::uint64_t size_bytes);

// Where a record lies. `tag` is half of its address; the other half says where the slot is.
struct PackSlot {
  std::uint64_t tag = 0;
  std::uint64_t offset = 0;  // 0: a free slot
};

// The slot that an address is looked for at first, and then in each that follows up to a free one.
std::uint64_t pack_home_of(const Digest128& address, std::uint64_t homes);
inline std::uint64_t pack_tag_of(const Digest128& address) { return address.high; }

// REQUIRES: at most kPackSlotsPerPage slots. The others are free.
std::string encode_pack_page(std::uint64_t number, const std::vector<PackSlot>& slots,
                             std::uint64_t salt);
// REQUIRES of both: kPackPageSizeBytes are there.
Status check_pack_page(std::string_view page, std::uint64_t number, std::uint64_t salt);
PackSlot pack_slot_in(std::string_view page, std::size_t slot);

// Notes are entries of this context, with what they are about for a key. No caller's context has
// its digest.
const Context& pack_notes_context();

}  // namespace modcache::store
