// SPDX-License-Identifier: Apache-2.0
//
// RemoteNames: how entries and contexts of one cache are called on its server, and the seal that
// they have there. Made from the settings; plain values.
#pragma once

#include <string>

#include "base/hash.h"
#include "base/result.h"
#include "cache/settings.h"
#include "remote/seal.h"

namespace modcache::cache {

class RemoteNames {
 public:
  // Takes prefix and secret from the address, or else from the environment. kInvalidArgument: one
  // of them is wrong, or a file with the secret cannot be read.
  static Result<RemoteNames> of(const Settings& settings);

  std::string entry_name(const Digest128& address) const { return prefix_ + "/e/" + address.hex(); }
  // All names begin with this and a slash.
  const std::string& prefix() const { return prefix_; }
  const remote::Seal& seal() const { return seal_; }

 private:
  RemoteNames(const std::string& prefix, const std::string& secret);

  std::string prefix_;
  remote::Seal seal_;
};

}  // namespace modcache::cache
