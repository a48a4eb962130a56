// SPDX-License-Identifier: Apache-2.0
//
// ReceivedRows: a FoundEntries of entries that did not come from a directory: somebody received
// their bytes, and has verified them. Used by one thread, for one batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/bytes.h"
#include "base/hash.h"
#include "store/entry/put.h"
#include "store/found/found_entries.h"

namespace modcache::store {

class ReceivedRows {
 public:
  // Such rows have no place in any directory. Their sequence says no more than that they are there.
  static constexpr Sequence kSequence = 1;

  // One row for each address; none is there yet.
  explicit ReceivedRows(std::span<const Digest128> addresses);

  // One entry that was received. Header and payload lie in memory that `payload.owner` keeps.
  struct Entry {
    std::string_view header;
    SharedBytes payload;
    std::int64_t run_us = 0;
    std::int64_t stored_at_us = 0;
  };
  void add(std::size_t i, const Entry& entry);

  FoundEntries finish() &&;

 private:
  std::uint32_t header_index(std::string_view shared);

  FoundEntries found_;
};

}  // namespace modcache::store
