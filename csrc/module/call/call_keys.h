// SPDX-License-Identifier: Apache-2.0
//
// CallKeys: the key of a whole call, or the keys of its rows, and which of them repeat an earlier
// one. Owns the text of rows' keys; that of a whole call is borrowed until own() is called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensor/input.h"

namespace modcache::module {

class CallKeys {
 public:
  // Makes the key of a whole call. Borrows it. REQUIRES: it is not empty.
  static CallKeys whole(std::string_view key);
  // Makes the keys of rows. Copies them. REQUIRES: none is empty.
  explicit CallKeys(const std::vector<std::string_view>& keys);
  // Makes keys of integer ids: id 7 has the key "7".
  static CallKeys of_ids(const std::int64_t* ids, std::size_t count);

  CallKeys(CallKeys&&) = default;

  // Copies a borrowed key.
  void own();

  tensor::Per per() const { return per_; }
  bool is_whole() const { return per_ == tensor::Per::kCall; }
  std::size_t rows() const { return rows_; }  // 1 for a whole call

  // The distinct keys, in the order of their first rows. Below, i is an index into this list.
  const std::vector<std::string_view>& distinct() const { return distinct_; }
  std::size_t size() const { return is_whole() ? 1 : distinct_.size(); }
  std::string_view key(std::size_t i) const { return is_whole() ? whole_ : distinct_[i]; }
  std::int64_t first_row(std::size_t i) const { return is_whole() ? 0 : first_rows_[i]; }

  // The rows that repeat the key of an earlier row: {row, the first row with this key}.
  const std::vector<std::pair<std::size_t, std::size_t>>& repeated() const { return repeated_; }

 private:
  CallKeys() = default;
  void find_distinct(const std::vector<std::size_t>& ends);

  tensor::Per per_ = tensor::Per::kRow;
  std::string_view whole_;
  // One key after another. A vector, as its bytes stay in place when it is moved.
  std::vector<char> text_;
  std::size_t rows_ = 1;
  std::vector<std::string_view> distinct_;
  std::vector<std::int64_t> first_rows_;
  std::vector<std::pair<std::size_t, std::size_t>> repeated_;
};

}  // namespace modcache::module
