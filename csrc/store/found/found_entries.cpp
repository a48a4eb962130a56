// SPDX-License-Identifier: Apache-2.0
#include "store/found/found_entries.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "store/found/location_map.h"
#include "store/segment/segment_reader.h"

namespace modcache::store {

FoundEntries& FoundEntries::operator=(FoundEntries&& other) noexcept {
  if (this == &other) return *this;
  note_verified();
  addresses_ = std::move(other.addresses_);
  rows_ = std::move(other.rows_);
  headers_ = std::move(other.headers_);
  segments_ = std::move(other.segments_);
  kept_ = std::move(other.kept_);
  failures_ = std::move(other.failures_);
  index_status_ = std::move(other.index_status_);
  locations_ = std::move(other.locations_);
  fork_generation_ = other.fork_generation_;
  return *this;
}

SharedBytes FoundEntries::received_payload(std::size_t i) const {
  const Row& row = rows_[i];
  if (!row.is_received) return {nullptr, row.payload, row.payload_size_bytes};
  return {kept_[row.segment], row.payload, row.payload_size_bytes};
}

void FoundEntries::append(FoundEntries other) {
  const std::size_t before = rows_.size();
  OneOrMany<Row> rows(before + other.rows_.size());
  OneOrMany<Digest128> addresses(rows.size());
  std::copy(rows_.begin(), rows_.end(), rows.begin());
  std::copy(addresses_.begin(), addresses_.end(), addresses.begin());
  std::copy(other.addresses_.begin(), other.addresses_.end(), addresses.begin() + before);
  for (std::size_t i = 0; i < other.rows_.size(); ++i) {
    Row& row = rows[before + i];
    row = other.rows_[i];
    row.header += static_cast<std::uint32_t>(headers_.size());
    row.segment += static_cast<std::uint32_t>(row.is_received ? kept_.size() : segments_.size());
  }
  rows_ = std::move(rows);
  addresses_ = std::move(addresses);
  const auto move_to = [](auto& from, auto& to) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  move_to(other.headers_, headers_);
  move_to(other.segments_, segments_);
  move_to(other.kept_, kept_);
}

Status FoundEntries::read(std::size_t i, void* target) const {
  Row& row = rows_[i];
  // An empty payload needs no bytes, and one that is queued has none to point at.
  if (row.payload == nullptr && row.payload_size_bytes > 0) {
    const SegmentReader& reader = *segments_[row.segment].reader;
    MODCACHE_RETURN_IF_ERROR(reader.read(row.payload_offset, target, row.payload_size_bytes));
  } else if (row.payload_size_bytes > 0) {
    std::memcpy(target, row.payload, row.payload_size_bytes);
  }
  // The copy is checked, not the file: the bytes there may change between two looks.
  return verify(row, target);
}

Result<std::shared_ptr<std::byte>> FoundEntries::map_copy(std::size_t i) const {
  Row& row = rows_[i];
  if (row.payload == nullptr || row.is_queued) return std::shared_ptr<std::byte>();
  const auto mapping =
      segments_[row.segment].reader->map_copy(row.payload_offset, row.payload_size_bytes);
  if (mapping == nullptr) return std::shared_ptr<std::byte>();
  std::byte* const bytes = mapping->data();
  MODCACHE_RETURN_IF_ERROR(verify(row, bytes));
  return std::shared_ptr<std::byte>(mapping, bytes);
}

// Checks the payload's checksum unless this process has verified the record.
Status FoundEntries::verify(Row& row, const void* bytes) {
  if (row.is_verified) return Status::ok();
  if (xxh3_64(bytes, row.payload_size_bytes) != row.payload_checksum) {
    return Status::corruption("a payload fails its checksum");
  }
  row.is_verified = true;
  if (!row.was_verified) row.is_newly_verified = true;
  return Status::ok();
}

void FoundEntries::note_verified() {
  // The parent's map is not the child's: another thread may have held its lock at the fork.
  if (locations_ == nullptr || fork_generation_ != modcache::fork_generation()) return;
  const auto is_new = [](const Row& row) { return row.is_newly_verified; };
  if (std::none_of(rows_.begin(), rows_.end(), is_new)) return;
  std::vector<LocationMap::Verified> verified;
  verified.reserve(rows_.size());
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (!std::exchange(rows_[i].is_newly_verified, false)) continue;
    verified.push_back({addresses_[i], segments_[rows_[i].segment].id, rows_[i].sequence});
  }
  locations_->note_verified(verified);
}

}  // namespace modcache::store
