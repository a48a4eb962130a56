// SPDX-License-Identifier: Apache-2.0
//
// Numbers that nobody else has: ids and salts. Not for secrets.
#pragma once

#include <cstdint>
#include <random>

namespace modcache {

inline std::uint64_t random_number() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

}  // namespace modcache
