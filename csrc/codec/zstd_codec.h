// SPDX-License-Identifier: Apache-2.0
//
// Codec `zstd`: blocks of 65,536 elements. A block holds its byte planes (byte_planes.h) one after
// another, each either unchanged or as one Zstandard frame where that is shorter. So mantissas,
// which no compressor shortens, cost no more than a copy.
//
//     block    for each plane: u16 (little-endian), the length of its frame, or 0 when the plane
//              is unchanged; then the bytes
//     tail     the bytes after the last whole element, unchanged
//
// Call through codec.h, which has the contract.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace modcache::codec {

std::optional<std::string> encode_zstd(std::size_t element_size_bytes, std::string_view bytes);
Status decode_zstd(std::size_t element_size_bytes, std::string_view encoded, char* target,
                   std::size_t target_size_bytes);

}  // namespace modcache::codec
