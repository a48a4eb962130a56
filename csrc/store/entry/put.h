// SPDX-License-Identifier: Apache-2.0
//
// The entries that a caller passes to the store: a single one, or one of many of the same context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "store/entry/entry_id.h"
#include "store/entry/removals.h"

namespace modcache::store {

// The shared part of a header. Most entries of a context have the same header apart from their own
// part (own_part.h), so it is kept once. Equal pointers mean equal bytes; the reverse is nearly
// always true, but nothing may depend on it.
using SharedHeader = std::shared_ptr<const std::string>;
inline constexpr std::size_t kMaxHeaderSizeBytes = 1 << 20;

struct Put {
  EntryId id;
  std::string header;   // opaque to the store; at most kMaxHeaderSizeBytes
  SharedBytes payload;  // kept until written
  std::int64_t run_us = 0;
  // The caller knows that the entry replaces another value, which must not be found again. It
  // counts as a removal even if the directory has evicted the older value.
  bool replaces = false;
};

// One of many entries that are put into the same context. Key and header are borrowed during the
// call.
struct RowPut {
  std::string_view key;
  std::string_view header;
  SharedBytes payload;
  std::int64_t run_us = 0;
  bool replaces = false;
  std::int64_t stored_at_us = 0;  // since 1970; 0: now
  const Moment* since = nullptr;  // borrowed; null: an earlier clear does not matter
};

}  // namespace modcache::store
