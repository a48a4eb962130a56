// SPDX-License-Identifier: Apache-2.0
//
// The bytes that describe a stored tensor (FORMAT.md, "Tensor header"):
//   u8 version = 1 | u8 dtype | u8 flags | u8 dimensions | i64 size of each dimension
// little-endian. Known without torch, so that it can be checked and fuzzed alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace modcache::tensor {

struct TensorHeader {
  static constexpr std::uint8_t kVersion = 1;
  static constexpr std::uint8_t kBesideInput = 1;  // flag: the result lay on its input's device
  static constexpr std::size_t kMostDimensions = 64;

  std::uint8_t dtype = 0;
  std::uint8_t flags = 0;
  std::vector<std::int64_t> sizes;
};

// REQUIRES: at most kMostDimensions sizes, none negative.
std::string encode_tensor_header(const TensorHeader& header);

// kCorruption unless `bytes` are exactly one header of this version with sizes that are not
// negative.
Result<TensorHeader> decode_tensor_header(std::string_view bytes);

}  // namespace modcache::tensor
