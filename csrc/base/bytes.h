// SPDX-License-Identifier: Apache-2.0
//
// Borrowed and shared runs of bytes. Neither knows what the bytes mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace modcache {

// A run of bytes kept alive by `owner`. The bytes never change while any copy exists: this is
// what lets one buffer serve the memory tier and the background writer without a copy.
struct SharedBytes {
  std::shared_ptr<const void> owner;
  const std::byte* data = nullptr;
  std::size_t size_bytes = 0;

  std::string_view view() const { return {reinterpret_cast<const char*>(data), size_bytes}; }
};

// Takes over `bytes`.
inline SharedBytes share_bytes(std::string bytes) {
  auto owner = std::make_shared<const std::string>(std::move(bytes));
  const auto* data = reinterpret_cast<const std::byte*>(owner->data());
  const std::size_t size_bytes = owner->size();
  return {std::move(owner), data, size_bytes};
}

// Numbers as bytes, the lowest byte first on every machine.
// REQUIRES for both: there are sizeof(Number) bytes.
template <typename Number>
Number read_number(const char* bytes) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    number |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  return static_cast<Number>(number);
}

template <typename Number>
void write_number(Number number, char* bytes) {
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    bytes[i] = static_cast<char>((static_cast<std::uint64_t>(number) >> (8 * i)) & 0xff);
  }
}

}  // namespace modcache
