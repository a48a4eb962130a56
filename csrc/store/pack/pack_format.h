// SPDX-License-Identifier: Apache-2.0
//
// The bytes of a pack besides its records (FORMAT.md has the grammar): the pages of its table, and
// the footer. Pure functions over memory, as in record.h: nothing from disk is trusted before its
// bounds and checksum were checked.
//
// Format version history
//  1: drafts.
//  2: smaller samples of inputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "store/entry/entry_id.h"

namespace modcache::store {

inline constexpr std::uint32_t kPackFormatVersion = 2;
inline constexpr std::size_t kPackFooterSizeBytes = 128;
inline constexpr std::size_t kPackPageSizeBytes = 4096;
inline constexpr std::size_t kPackSlotsPerPage = 255;
inline constexpr std::uint64_t kMostPackHomes = 0xffffffff;
// A slot is at most this many pages after its home. Only keys that were constructed to collide come
// close.
inline constexpr std::uint64_t kMostPackPagesOfLookup = 64;

struct PackFooter {
  std::uint64_t segment_id = 0;  // of the segment header at the beginning of the file
  std::uint64_t size_bytes = 0;  // of the whole file
  std::uint64_t table_offset = 0;
  std::uint64_t pages = 0;
  std::uint64_t homes = 0;  // the first slots, in which an address may be at home
  std::uint64_t entries = 0;
  std::uint64_t notes = 0;
  std::uint64_t contexts = 0;
  std::int64_t created_at_us = 0;
};

std::string encode_pack_footer(const PackFooter& footer);
// Decodes the last `bytes` of a file of `size_bytes`. kInvalidArgument: not a pack's. kCorruption:
// a damaged pack's. kUnsupportedVersion: another version's.
Result<PackFooter> decode_pack_footer(std::string_view bytes, std::uint64_t size_bytes);

// Where a record lies. `tag` is one half of its address; the other half determines the slot.
struct PackSlot {
  std::uint64_t tag = 0;
  std::uint64_t offset = 0;  // 0: a free slot
};

// Returns the slot where the search for an address begins; it continues in the next ones up to a
// free slot.
std::uint64_t pack_home_of(const Digest128& address, std::uint64_t homes);
inline std::uint64_t pack_tag_of(const Digest128& address) { return address.high; }

// Encodes the page; missing slots are free. REQUIRES: at most kPackSlotsPerPage slots.
std::string encode_pack_page(std::uint64_t number, const std::vector<PackSlot>& slots,
                             std::uint64_t salt);
// REQUIRES for both: `page` has kPackPageSizeBytes.
Status check_pack_page(std::string_view page, std::uint64_t number, std::uint64_t salt);
PackSlot pack_slot_in(std::string_view page, std::size_t slot);

// The context whose entries are the notes: the key is what a note is about. Its digest differs from
// that of every caller's context.
const Context& pack_notes_context();

}  // namespace modcache::store
