// SPDX-License-Identifier: Apache-2.0
#include "cache/remote_names.h"

#include <cstdlib>
#include <string_view>

#include "remote/address.h"
#include "remote/secret_file.h"

namespace modcache::cache {
namespace {

constexpr std::string_view kDefaultPrefix = "modcache";

std::string secret_from_environment() {
  const char* const secret = std::getenv("MODCACHE_REMOTE_KEY");
  return secret != nullptr ? secret : "";
}

Result<std::string> secret_of(const remote::Address& address) {
  const std::string path(address.parameter("key_file"));
  if (path.empty()) return secret_from_environment();
  return remote::read_secret_file(path, "key_file", "the secret that all machines of a team share");
}

}  // namespace

// Keys of teams with different secrets have different names, so that neither takes the other's
// entries for damaged ones, or replaces them.
RemoteNames::RemoteNames(const std::string& prefix, const std::string& secret)
    : prefix_(prefix + (secret.empty() ? "" : "/" + remote::Seal(secret).key_name())),
      seal_(secret) {}

Result<RemoteNames> RemoteNames::of(const Settings& settings) {
  MODCACHE_ASSIGN_OR_RETURN(const remote::Address address, remote::parse_address(settings.remote));
  std::string prefix(address.parameter("prefix"));
  if (prefix.empty()) prefix = kDefaultPrefix;
  MODCACHE_ASSIGN_OR_RETURN(const std::string secret, secret_of(address));
  return RemoteNames(prefix, secret);
}

}  // namespace modcache::cache
