// SPDX-License-Identifier: Apache-2.0
//
// Numbers as bytes, the lowest byte first on every machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace modcache {

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
