// SPDX-License-Identifier: Apache-2.0
#include "store/entry/own_part.h"

#include <cstdint>

#include "base/bytes.h"

namespace modcache::store {
namespace {

constexpr std::uint32_t kMark = std::uint32_t{1} << 31;

}  // namespace

HeaderParts split_header(std::string_view header) {
  const HeaderParts none{{}, header};
  if (header.size() < kOwnPrefixBytes) return none;
  const auto number = read_number<std::uint32_t>(header.data());
  if ((number & kMark) == 0) return none;
  const std::size_t size_bytes = number & ~kMark;
  if (size_bytes > kMostOwnBytes || size_bytes > header.size() - kOwnPrefixBytes) return none;
  return {header.substr(0, kOwnPrefixBytes + size_bytes),
          header.substr(kOwnPrefixBytes + size_bytes)};
}

std::string own_part_of(std::string_view own) {
  if (own.empty()) return {};
  const std::uint32_t number = kMark | static_cast<std::uint32_t>(own.size());
  std::string part(kOwnPrefixBytes, '\0');
  part.reserve(kOwnPrefixBytes + own.size());
  write_number(number, part.data());
  return part.append(own);
}

}  // namespace modcache::store
