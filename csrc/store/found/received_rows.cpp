// SPDX-License-Identifier: Apache-2.0
#include "store/found/received_rows.h"

#include <algorithm>
#include <string>
#include <utility>

#include "store/entry/own_part.h"

namespace modcache::store {

ReceivedRows::ReceivedRows(std::span<const Digest128> addresses) {
  found_.rows_ = OneOrMany<FoundEntries::Row>(addresses.size());
  found_.addresses_ = OneOrMany<Digest128>(addresses.size());
  std::copy(addresses.begin(), addresses.end(), found_.addresses_.begin());
}

// Most entries of a batch have the header of the one before.
std::uint32_t ReceivedRows::header_index(std::string_view shared) {
  std::vector<SharedHeader>& headers = found_.headers_;
  if (headers.empty() || *headers.back() != shared) {
    headers.push_back(std::make_shared<const std::string>(shared));
  }
  return static_cast<std::uint32_t>(headers.size() - 1);
}

void ReceivedRows::add(std::size_t i, const Entry& entry) {
  FoundEntries::Row& row = found_.rows_[i];
  const HeaderParts parts = split_header(entry.header);
  row.payload = entry.payload.data;
  row.payload_size_bytes = entry.payload.size_bytes;
  row.sequence = kSequence;
  row.run_us = entry.run_us;
  row.stored_at_us = entry.stored_at_us;
  row.header = header_index(parts.shared);
  row.own_part_bytes = static_cast<std::uint8_t>(parts.own_part.size());
  row.own = parts.own_part.empty() ? nullptr : parts.own_part.data() + kOwnPrefixBytes;
  row.is_queued = true;
  row.is_verified = true;
  row.is_received = true;
  row.segment = static_cast<std::uint32_t>(found_.kept_.size());
  found_.kept_.push_back(entry.payload.owner);
}

FoundEntries ReceivedRows::finish() && { return std::move(found_); }

}  // namespace modcache::store
