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

}  // namespace modcache
