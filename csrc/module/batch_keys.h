// SPDX-License-Identifier: Apache-2.0
//
// BatchKeys: the keys of a batch, one for each row, and which of them are the same. Owns its text;
// immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace modcache::module {

class BatchKeys {
 public:
  // REQUIRES: none is empty.
  explicit BatchKeys(const std::vector<std::string_view>& keys);
  // Id 7 is the key "7".
  static BatchKeys of_ids(const std::int64_t* ids, std::size_t count);

  BatchKeys(BatchKeys&&) = default;

  std::size_t rows() const { return rows_; }

  // The distinct keys, in the order of their first rows. Below, i is a place in this list.
  const std::vector<std::string_view>& distinct() const { return distinct_; }
  std::int64_t first_row(std::size_t i) const { return first_rows_[i]; }

  // Rows whose key an earlier row has: {row, the first row with this key}.
  const std::vector<std::pair<std::size_t, std::size_t>>& repeated() const { return repeated_; }

 private:
  void find_distinct(const std::vector<std::size_t>& ends);

  std::vector<char> text_;  // one key after the other; a vector keeps its place when moved
  std::size_t rows_;
  std::vector<std::string_view> distinct_;
  std::vector<std::int64_t> first_rows_;
  std::vector<std::pair<std::size_t, std::size_t>> repeated_;
};

}  // namespace modcache::module
