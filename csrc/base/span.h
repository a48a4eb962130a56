// SPDX-License-Identifier: Apache-2.0
//
// Span: a borrowed run of elements that are only read, as std::span<const T> of C++20. Valid as
// long as what it was made from.
#pragma once

#include <cstddef>
#include <vector>

namespace modcache {

template <typename T>
class Span {
 public:
  Span() = default;
  Span(const T* data, std::size_t size) : data_(data), size_(size) {}
  // From all elements of a vector. Implicit, since a function that takes a Span takes a vector.
  Span(const std::vector<T>& elements) : Span(elements.data(), elements.size()) {}  // NOLINT
  // A run of one.
  static Span of_one(const T& element) { return Span(&element, 1); }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }

 private:
  const T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace modcache
