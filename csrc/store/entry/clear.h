// SPDX-License-Identifier: Apache-2.0
//
// Clear: a clear, its position in the sequence of everything stored, and the entries that it
// covers.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/hash.h"
#include "store/entry/entry_id.h"

namespace modcache::store {

// A clear that was carried out or is about to be.
struct Clear {
  ClearFilter filter;
  Sequence sequence = 0;  // covers entries with a smaller one
  // If it is not 0, the clear covers only the entry of this context whose key equals the prefix.
  Digest128 context{};

  // True for clears that only the segments record: an entry that is put later cannot be meant.
  bool is_narrow() const { return context != Digest128{} || filter.older_than_us != 0; }
};

bool is_cleared_by(const Clear& clear, const Context& context, std::string_view key,
                   Sequence sequence, std::int64_t stored_at_us = 0);

}  // namespace modcache::store
