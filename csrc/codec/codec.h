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
  kZstd = 1,  // planes of bytes, each compressed with Zstandard (zstd_codec.h)
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

}  // namespace modcache::codec
