// SPDX-License-Identifier: Apache-2.0
//
// Codecs: fewer bytes for arrays of numbers, lossless for every bit pattern (NaNs with payloads
// and negative zeros too).
//
//     encoded = encode(codec, sizeof(float), bytes);       nullopt: store the bytes as they are
//     decode(codec, sizeof(float), *encoded, target, bytes.size())
//
// The caller keeps the number of bytes and the size of an element: the encoded bytes hold neither.
// Any thread may call, also in a forked child. Nothing throws but std::bad_alloc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace modcache::codec {

// The numbers are written to disk: they never change their meaning.
enum class Codec : std::uint8_t {
  kNone = 0,
  kZstd = 1,  // planes of bytes, each compressed with Zstandard (encode_zstd)
};

// Returns the name as the option `codec` has it; empty for a number that is none of the above.
std::string_view codec_name(Codec codec);

// Returns nullopt when the encoded bytes would not be shorter than `bytes`, as always with kNone.
std::optional<std::string> encode(Codec codec, std::size_t element_size_bytes,
                                  std::string_view bytes);

// Writes exactly `target_size_bytes` to `target`, or returns kCorruption, after which `target` may
// hold anything. `encoded` need not be trusted: this touches no byte outside of it and `target`,
// and takes memory for one block only. Returns kUnsupportedVersion for a codec that this version
// does not know.
Status decode(Codec codec, std::size_t element_size_bytes, std::string_view encoded, void* target,
              std::size_t target_size_bytes);

// Byte planes: the first bytes of all elements, then all second bytes, and so on ("shuffle").
// Floats of similar size share sign and exponent, so the plane of those bytes compresses well. It
// would not with the bytes of the mantissas in between.
inline constexpr std::size_t kMaxPlanes = 16;

// Returns the number of planes for elements of this size: 2, 4, 8 or 16; 1 for any other size.
std::size_t plane_count(std::size_t element_size_bytes);

// Splits `elements` elements: plane k starts at `target + k * elements`. Source and target hold
// `planes * elements` bytes and do not overlap; `planes` is a result of plane_count().
void split_into_planes(const char* source, std::size_t planes, std::size_t elements, char* target);

// The inverse, from planes that may lie anywhere: `sources[k]` has `elements` bytes.
void join_planes(const char* const* sources, std::size_t planes, std::size_t elements,
                 char* target);

// Codec `zstd`: blocks of 65,536 elements. A block holds its byte planes (split_into_planes) one
// after another, each either unchanged or as one Zstandard frame where that is shorter. So
// mantissas, which no compressor shortens, cost no more than a copy.
//
//     block    for each plane: u16 (little-endian), the length of its frame, or 0 when the plane
//              is unchanged; then the bytes
//     tail     the bytes after the last whole element, unchanged
//
// Call through codec.h, which has the contract.
std::optional<std::string> encode_zstd(std::size_t element_size_bytes, std::string_view bytes);
Status decode_zstd(std::size_t element_size_bytes, std::string_view encoded, char* target,
                   std::size_t target_size_bytes);

}  // namespace modcache::codec
