// SPDX-License-Identifier: Apache-2.0
#include "remote/seal.h"

namespace modcache::remote {

std::string Seal::key_name() const {
  return has_key() ? blake2b_mac(key_, {"the name of this key"}).hex().substr(0, 8) : std::string();
}

Digest128 Seal::of(const std::vector<std::string_view>& parts) const {
  if (has_key()) return blake2b_mac(key_, parts);
  if (parts.size() == 1) return xxh3_128(parts.front());
  Xxh3Hasher hasher;
  for (const std::string_view part : parts) hasher.update(part.data(), part.size());
  return hasher.digest();
}

void Seal::put_on(std::string& bytes) const { bytes += of({bytes}).bytes(); }

bool Seal::take_off(std::string_view& bytes) const {
  if (bytes.size() < kSizeBytes) return false;
  const std::string_view content = bytes.substr(0, bytes.size() - kSizeBytes);
  if (of({content}).bytes() != bytes.substr(content.size())) return false;
  bytes = content;
  return true;
}

}  // namespace modcache::remote
