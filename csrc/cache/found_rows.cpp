// SPDX-License-Identifier: Apache-2.0
#include "cache/found_rows.h"

#include <iterator>
#include <utility>

#include "cache/entry_header.h"

namespace modcache::cache {

FoundRows::FoundRows(store::FoundEntries entries, std::uint64_t removals, bool have_ages)
    : entries_(std::move(entries)), removals_(removals), have_ages_(have_ages) {
  headers_.reserve(entries_.headers().size());
  for (const store::SharedHeader& packed : entries_.headers()) {
    Header header;
    header.packed = packed;
    header.is_sound = unpack_header(*packed, header.signature, header.value_header);
    headers_.push_back(std::move(header));
  }
}

void FoundRows::append(FoundRows other) {
  entries_.append(std::move(other.entries_));
  std::move(other.headers_.begin(), other.headers_.end(), std::back_inserter(headers_));
  have_ages_ = have_ages_ || other.have_ages_;
}

}  // namespace modcache::cache
