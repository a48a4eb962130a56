// SPDX-License-Identifier: Apache-2.0
#include "store/entry/entry_id.h"

namespace modcache::store {

Digest128 address_of(const Digest128& context, std::string_view key) {
  const Digest128 digest = xxh3_128(key);
  const std::uint64_t words[] = {context.high, context.low, digest.high, digest.low};
  return xxh3_128(words, sizeof words);
}

OneOrMany<Digest128> addresses_of(const Digest128& context,
                                  std::span<const std::string_view> keys) {
  OneOrMany<Digest128> addresses(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) addresses[i] = address_of(context, keys[i]);
  return addresses;
}

}  // namespace modcache::store
