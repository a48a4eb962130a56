// SPDX-License-Identifier: Apache-2.0
//
// FoundRows: what tiers found of some keys, row by row, with the parts of each header told
// apart once for all rows that share it. Movable; owns what keeps the bytes readable
// (store/found/found_entries.h, which also says what several threads may do at once).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "store/found/found_entries.h"

namespace modcache::cache {

// When an entry was stored that never becomes too old.
inline constexpr std::int64_t kAgeless = std::numeric_limits<std::int64_t>::max();

class FoundRows {
 public:
  struct Header {
    store::SharedHeader packed;     // keeps the rest
    std::string_view signature;     // of the input that the row was computed from
    std::string_view value_header;  // as Value::header() gave it
    bool is_sound = false;
  };

  // Nothing was found.
  FoundRows() = default;
  FoundRows(store::FoundEntries entries, std::uint64_t removals, bool have_ages = true);

  std::size_t size() const { return entries_.size(); }
  // Appends the rows of a farther tier: its row i becomes row size() + i. The count of removals
  // stays.
  void append(FoundRows other);

  bool has(std::size_t i) const {
    return i < entries_.size() && entries_.has(i) && header(i).is_sound;
  }

  // REQUIRES of all that follow: has(i).
  const Header& header(std::size_t i) const { return headers_[entries_.header_index(i)]; }
  // Rows with the same index have the same header; it is below headers().size().
  std::size_t header_index(std::size_t i) const { return entries_.header_index(i); }
  // The sample of the input that the row was computed from; empty: there is none.
  std::string_view sample(std::size_t i) const { return entries_.own(i); }
  std::size_t payload_size_bytes(std::size_t i) const { return entries_.payload_size_bytes(i); }
  store::Sequence sequence(std::size_t i) const { return entries_.sequence(i); }
  std::int64_t run_us(std::size_t i) const { return entries_.run_us(i); }
  // See FoundEntries::verify_again().
  void verify_again(std::size_t i) { entries_.verify_again(i); }
  // See Entry::stored_at_us.
  std::int64_t stored_at_us(std::size_t i) const {
    return have_ages_ ? entries_.stored_at_us(i) : kAgeless;
  }
  // Failures are for Cache::refuse() or Tier::refuse(), which count them.
  Status read(std::size_t i, void* target) const { return entries_.read(i, target); }
  Result<std::shared_ptr<std::byte>> map_copy(std::size_t i) const { return entries_.map_copy(i); }
  const std::byte* verified_bytes(std::size_t i) const { return entries_.verified_bytes(i); }

  const std::vector<Header>& headers() const { return headers_; }
  // The directory's count of removals, read before the rows were looked up.
  std::uint64_t removals() const { return removals_; }
  const store::FoundEntries& entries() const { return entries_; }

 private:
  store::FoundEntries entries_;
  std::vector<Header> headers_;
  std::uint64_t removals_ = 0;
  bool have_ages_ = true;
};

}  // namespace modcache::cache
