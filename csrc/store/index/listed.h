// SPDX-License-Identifier: Apache-2.0
//
// The facts that a listing returns about the contexts and entries of an index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/entry/entry_id.h"
#include "store/segment/location.h"

namespace modcache::store {

class Index;

// A context that has entries, and their sums.
struct ListedContext {
  std::int64_t id = 0;  // the context's number in the database
  Context context;
  std::int64_t entries = 0;
  std::int64_t payload_bytes = 0;
  std::int64_t record_bytes = 0;  // with heads and padding, as in the segments
  std::int64_t run_us = 0;
  std::int64_t first_stored_at_us = 0;
  std::int64_t last_stored_at_us = 0;
};

struct ListedEntry {
  std::string key;
  Location location;
  std::int64_t stored_at_us = 0;
};

// See Listing::contexts() and Listing::page(). `context` is the context's number.
Result<std::vector<ListedContext>> list_contexts(Index& index);
Result<std::vector<ListedEntry>> list_entries(Index& index, std::int64_t context,
                                              std::string_view from_key, std::size_t limit);

}  // namespace modcache::store
