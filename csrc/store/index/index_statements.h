// SPDX-License-Identifier: Apache-2.0
//
// The prepared statements of an Index; those that write are empty in one that only reads.
#pragma once

#include "store/index/index.h"

namespace modcache::store {

// How names in `meta` begin that say where a segment's last record lies; the segment's follows.
inline constexpr char kLastOffsetName[] = "offset ";

struct Index::Statements {
  Statement find;
  Statement find_in_context;
  Statement segment_by_id;
  Statement clears_after;
  Statement context_by_digest;
  Statement add_context;
  Statement segment_by_name;
  Statement add_segment;
  Statement add_entry;
  Statement entry_of_key;
  Statement replace_entry;
  Statement mark_as_replacing;
  Statement replaces;
  Statement remove_entry;
  Statement add_live_entries;
  Statement raise_last_sequence;
  Statement raise_last_offset;
};

}  // namespace modcache::store
