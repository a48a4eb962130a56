// SPDX-License-Identifier: Apache-2.0
#include "codec/codec.h"

#include <cstring>

#include "codec/zstd_codec.h"

namespace modcache::codec {

std::string_view codec_name(Codec codec) {
  switch (codec) {
    case Codec::kNone: return "none";
    case Codec::kZstd: return "zstd";
  }
  return {};
}

std::optional<std::string> encode(Codec codec, std::size_t element_size_bytes,
                                  std::string_view bytes) {
  switch (codec) {
    case Codec::kNone: return std::nullopt;
    case Codec::kZstd: return encode_zstd(element_size_bytes, bytes);
  }
  return std::nullopt;
}

Status decode(Codec codec, std::size_t element_size_bytes, std::string_view encoded, void* target,
              std::size_t target_size_bytes) {
  switch (codec) {
    case Codec::kNone:
      if (encoded.size() != target_size_bytes) {
        return Status::corruption("plain bytes of another length than the value's");
      }
      if (!encoded.empty()) std::memcpy(target, encoded.data(), encoded.size());
      return Status::ok();
    case Codec::kZstd:
      return decode_zstd(element_size_bytes, encoded, static_cast<char*>(target),
                         target_size_bytes);
  }
  return Status::unsupported_version("codec " + std::to_string(static_cast<unsigned>(codec)) +
                                     " is not known to this version");
}

}  // namespace modcache::codec
