// SPDX-License-Identifier: Apache-2.0
//
// Codecs: fewer bytes for arrays of numbers, lossless for every bit pattern (NaNs with payloads
// and negative zeros too).
//
//     encoded = encode(codec, sizeof(float), bytes);       nullopt: store the bytes as they are
//     decode(codec, sizeof(float), *encoded, target, bytes.size())
//
// The number of bytes and the element's size are not part of what is encoded: the caller keeps
// them. Any thread may call, also in a forked child. Nothing throws, std::bad_alloc aside.
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

// As the option `codec` names it; empty for a number that is none of the above.
std::string_view codec_name(Codec codec);

// Nullopt when that would not be shorter than `bytes`, as always with kNone.
std::optional<std::string> encode(Codec codec, std::size_t element_size_bytes,
                                  std::string_view bytes);

// Writes exactly `target_size_bytes` to `target`, or is kCorruption: then `target` may hold
// anything. `encoded` may be anything at all: no byte outside it and `target` is touched, and
// memory is needed for one block only. A codec this version does not know is
// kUnsupportedVersion.
Status decode(Codec codec, std::size_t element_size_bytes, std::string_view encoded, void* target,
              std::size_t target_size_bytes);

}  // namespace modcache::codec
