// SPDX-License-Identifier: Apache-2.0
//
// BatchKeys: the keys of a batch, one per row, and which of them repeat an earlier one. Owns its
// text; immutable.
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
  // Copies the keys. REQUIRES: none is empty.
  explicit BatchKeys(const std::vector<std::string_view>& keys);
  // Makes keys of integer ids: id 7 has the key "7".
  static BatchKeys of_ids(const std::int64_t* ids, std::size_t count);

  BatchKeys(BatchKeys&&) = default;

  std::size_t rows() const { return rows_; }

  // The distinct keys, in the order of their first rows. Below, i is an index into this list.
  const std::vector<std::string_view>& distinct() const { return distinct_; }
  std::int64_t first_row(std::size_t i) const { return first_rows_[i]; }

  // The rows that repeat the key of an earlier row: {row, the first row with this key}.
  const std::vector<std::pair<std::size_t, std::size_t>>& repeated() const { return repeated_; }

 private:
  void find_distinct(const std::vector<std::size_t>& ends);

  // One key after another. A vector, as its bytes stay in place when it is moved.
  std::vector<char> text_;
  std::size_t rows_;
  std::vector<std::string_view> distinct_;
  std::vector<std::int64_t> first_rows_;
  std::vector<std::pair<std::size_t, std::size_t>> repeated_;
};

}  // namespace modcache::module
