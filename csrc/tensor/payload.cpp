// SPDX-License-Identifier: Apache-2.0
#include "tensor/payload.h"

#include <string>
#include <utility>

namespace modcache::tensor {
namespace {

constexpr auto kPlain = static_cast<std::uint8_t>(codec::Codec::kNone);
// No codec makes numbers smaller by this factor, so a header that claims it is damaged.
constexpr std::size_t kMostShrinking = 1 << 16;

}  // namespace

cache::Written write_payload(const Layout& layout, SharedBytes payload, codec::Codec codec) {
  if (codec != codec::Codec::kNone) {
    auto encoded = codec::encode(codec, layout.element_size_bytes(), payload.view());
    if (encoded.has_value()) {
      return {layout.header_with(static_cast<std::uint8_t>(codec)),
              share_bytes(*std::move(encoded))};
    }
  }
  return {layout.header_with(kPlain), std::move(payload)};
}

bool is_plain(const Layout& layout) { return layout.codec() == kPlain; }

Status check_payload_size(const Layout& layout, std::size_t stored_size_bytes) {
  const std::size_t size_bytes = layout.payload_size_bytes();
  const bool fits = layout.codec() == kPlain ? stored_size_bytes == size_bytes
                                             : size_bytes / kMostShrinking <= stored_size_bytes;
  if (fits) return Status::ok();
  return Status::corruption("a value header asks for " + std::to_string(size_bytes) +
                            " bytes, its payload has " + std::to_string(stored_size_bytes));
}

Status read_payload(const Layout& layout, std::size_t stored_size_bytes, const ReadStored& read,
                    void* target) {
  if (layout.codec() == kPlain) return read(target);
  std::string encoded(stored_size_bytes, '\0');
  MODCACHE_RETURN_IF_ERROR(read(encoded.data()));
  return codec::decode(static_cast<codec::Codec>(layout.codec()), layout.element_size_bytes(),
                       encoded, target, layout.payload_size_bytes());
}

}  // namespace modcache::tensor
