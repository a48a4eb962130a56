// SPDX-License-Identifier: Apache-2.0
#include "store/own_part.h"

#include <cstdint>

namespace modcache::store {
namespace {

constexpr std::uint32_t kMark = std::uint32_t{1} << 31;

}  // namespace

HeaderParts split_header(std::string_view header) {
  const HeaderParts none{{}, header};
  if (header.size() < kOwnPrefixBytes) return none;
  std::uint32_t number = 0;
  for (std::size_t i = kOwnPrefixBytes; i-- > 0;) {
    number = (number << 8) | static_cast<unsigned char>(header[i]);
  }
  if ((number & kMark) == 0) return none;
  const std::size_t size_bytes = number & ~kMark;
  if (size_bytes > kMostOwnBytes || size_bytes > header.size() - kOwnPrefixBytes) return none;
  return {header.substr(0, kOwnPrefixBytes + size_bytes),
          header.substr(kOwnPrefixBytes + size_bytes)};
}

std::string own_part_of(std::string_view own) {
  if (own.empty()) return {};
  const std::uint32_t number = kMark | static_cast<std::uint32_t>(own.size());
  std::string part;
  part.reserve(kOwnPrefixBytes + own.size());
  for (std::size_t i = 0; i < kOwnPrefixBytes; ++i) {
    part.push_back(static_cast<char>((number >> (8 * i)) & 0xff));
  }
  return part.append(own);
}

}  // namespace modcache::store
