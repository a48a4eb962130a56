// SPDX-License-Identifier: Apache-2.0
#include "cache/entry_header.h"

#include "base/utf8.h"
#include "store/entry/own_part.h"

namespace modcache::cache {
namespace {

constexpr std::size_t kSizeBytes = 4;

}  // namespace

std::string pack_header(std::string_view signature, std::string_view value_header,
                        std::string_view sample) {
  std::string out = store::own_part_of(sample);
  out.reserve(out.size() + kSizeBytes + signature.size() + value_header.size());
  for (std::size_t i = 0; i < kSizeBytes; ++i) {
    out.push_back(static_cast<char>((signature.size() >> (8 * i)) & 0xff));
  }
  return out.append(signature).append(value_header);
}

bool unpack_header(std::string_view header, std::string_view& signature,
                   std::string_view& value_header, std::string_view* sample) {
  const auto parts = store::split_header(header);
  if (sample != nullptr) *sample = parts.own();
  header = parts.shared;
  if (header.size() < kSizeBytes) return false;
  std::size_t size = 0;
  for (std::size_t i = kSizeBytes; i-- > 0;) {
    size = (size << 8) | static_cast<unsigned char>(header[i]);
  }
  if (size > header.size() - kSizeBytes) return false;
  signature = header.substr(kSizeBytes, size);
  value_header = header.substr(kSizeBytes + size);
  return is_utf8(signature);
}

}  // namespace modcache::cache
