// SPDX-License-Identifier: Apache-2.0
//
// Random 64-bit numbers for ids and salts, from the system's source. Not meant for secrets.
#pragma once

#include <cstdint>
#include <random>

namespace modcache {

inline std::uint64_t random_number() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

}  // namespace modcache
