// SPDX-License-Identifier: Apache-2.0
#include "module/call/call_keys.h"

#include <charconv>

#include "base/hash.h"

namespace modcache::module {

CallKeys CallKeys::whole(std::string_view key) {
  CallKeys keys;
  keys.per_ = tensor::Per::kCall;
  keys.whole_ = key;
  return keys;
}

void CallKeys::own() {
  if (!is_whole() || !text_.empty()) return;
  text_.assign(whole_.begin(), whole_.end());
  whole_ = {text_.data(), text_.size()};
}

CallKeys::CallKeys(const std::vector<std::string_view>& keys) : rows_(keys.size()) {
  std::vector<std::size_t> ends;
  ends.reserve(keys.size());
  std::size_t end = 0;
  for (const std::string_view key : keys) ends.push_back(end += key.size());
  text_.reserve(end);
  for (const std::string_view key : keys) text_.insert(text_.end(), key.begin(), key.end());
  find_distinct(ends);
}

CallKeys CallKeys::of_ids(const std::int64_t* ids, std::size_t count) {
  constexpr std::size_t kMostDigits = 20;  // and a sign
  std::vector<char> text(count * kMostDigits);
  std::vector<std::string_view> keys;
  keys.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    char* const begin = text.data() + i * kMostDigits;
    const auto written = std::to_chars(begin, begin + kMostDigits, ids[i]);
    keys.emplace_back(begin, static_cast<std::size_t>(written.ptr - begin));
  }
  return CallKeys(keys);
}

// Uses a hash table with open addressing over the rows, as batches have hundreds of keys and nearly
// all are distinct.
void CallKeys::find_distinct(const std::vector<std::size_t>& ends) {
  if (rows_ == 1) {
    distinct_.emplace_back(text_.data(), text_.size());
    first_rows_.push_back(0);
    return;
  }
  constexpr std::uint32_t kFree = ~0U;
  std::size_t slots = 16;
  while (slots < 2 * rows_) slots *= 2;
  std::vector<std::uint32_t> table(slots, kFree);
  distinct_.reserve(rows_);
  first_rows_.reserve(rows_);
  std::size_t begin = 0;
  for (std::size_t row = 0; row < rows_; ++row) {
    const std::string_view key(text_.data() + begin, ends[row] - begin);
    begin = ends[row];
    std::size_t slot = xxh3_64(key.data(), key.size()) & (slots - 1);
    while (table[slot] != kFree && distinct_[table[slot]] != key) slot = (slot + 1) & (slots - 1);
    if (table[slot] == kFree) {
      table[slot] = static_cast<std::uint32_t>(distinct_.size());
      distinct_.push_back(key);
      first_rows_.push_back(static_cast<std::int64_t>(row));
    } else {
      repeated_.emplace_back(row, static_cast<std::size_t>(first_rows_[table[slot]]));
    }
  }
}

}  // namespace modcache::module
