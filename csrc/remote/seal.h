// SPDX-License-Identifier: Apache-2.0
//
// Seal: the last 16 bytes of all that lies on a server. A checksum (XXH3-128), which finds damage;
// or, where the team has a key, a code that only those make who have it (keyed BLAKE2b), so that
// what strangers put there is refused. Pure functions; thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"

namespace modcache::remote {

class Seal {
 public:
  static constexpr std::size_t kSizeBytes = Digest128::kSizeBytes;

  // `secret`: of any length; empty: checksums alone.
  explicit Seal(std::string_view secret = {}) : key_(secret.empty() ? "" : mac_key_of(secret)) {}

  bool has_key() const { return !key_.empty(); }
  // Eight hexadecimal digits that tell keys apart, for names on the server; empty without a key.
  std::string key_name() const;

  Digest128 of(const std::vector<std::string_view>& parts) const;
  // Appends it.
  void put_on(std::string& bytes) const;
  // Takes it off. False: it is not there, or is another.
  bool take_off(std::string_view& bytes) const;

 private:
  std::string key_;
};

}  // namespace modcache::remote
