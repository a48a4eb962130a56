// SPDX-License-Identifier: Apache-2.0
//
// OneOrMany: a run of elements of a fixed size that takes no memory of the heap for a single one.
// A single key goes the way of a batch; with vectors alone a hit in memory would cost half as many
// instructions more (three allocations).
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace modcache {

template <typename T>
class OneOrMany {
 public:
  OneOrMany() = default;
  explicit OneOrMany(std::size_t size) : size_(size), many_(size > 1 ? size : 0) {}

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return size_ > 1 ? many_.data() : &one_; }
  const T* data() const { return size_ > 1 ? many_.data() : &one_; }
  T& operator[](std::size_t i) { return data()[i]; }
  const T& operator[](std::size_t i) const { return data()[i]; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }
  operator std::span<const T>() const { return {data(), size_}; }  // NOLINT: as a vector's

 private:
  std::size_t size_ = 0;
  T one_{};
  std::vector<T> many_;  // where there are more than one
};

}  // namespace modcache
