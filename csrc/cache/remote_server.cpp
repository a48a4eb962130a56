// SPDX-License-Identifier: Apache-2.0
#include "cache/remote_server.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "remote/address.h"
#include "remote/engine_library.h"
#include "remote/secret_file.h"

namespace modcache::cache {
namespace {

constexpr std::string_view kDefaultPrefix = "modcache";
// Nobody waits for a write, so it may take several times as long as a call waits.
constexpr int kTimesForWrites = 8;

bool is_good_prefix(std::string_view prefix) {
  return !prefix.empty() && std::all_of(prefix.begin(), prefix.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.' || c == '/';
  });
}

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

Result<remote::Client::MakeBackend> connect_by_library(const Settings& settings) {
  MODCACHE_ASSIGN_OR_RETURN(remote::Address address, remote::parse_address(settings.remote));
  MODCACHE_RETURN_IF_ERROR(remote::read_credentials(address));
  MODCACHE_ASSIGN_OR_RETURN(remote::BackendFactory factory, remote::open_engine_library());
  const remote::BackendOptions options{std::move(address), settings.remote_timeout_ms};
  return remote::Client::MakeBackend(
      [factory = std::move(factory), options] { return factory(options); });
}

Result<RemoteServer::Parts> RemoteServer::parts_of(const Settings& settings) {
  MODCACHE_ASSIGN_OR_RETURN(const remote::Address address, remote::parse_address(settings.remote));
  std::string prefix(address.parameter("prefix"));
  if (prefix.empty()) prefix = kDefaultPrefix;
  if (!is_good_prefix(prefix)) {
    return Status::invalid_argument("the parameter prefix of remote is '" + prefix +
                                    "', but may have only letters, digits and -_./");
  }
  MODCACHE_ASSIGN_OR_RETURN(std::string secret, secret_of(address));
  return Parts{std::move(prefix), std::move(secret)};
}

Result<std::shared_ptr<RemoteServer>> RemoteServer::open(const Settings& settings,
                                                         const ConnectRemote& connect,
                                                         remote::WriteBehind::Listener& listener,
                                                         remote::Client::OnChange on_change) {
  MODCACHE_ASSIGN_OR_RETURN(const Parts parts, parts_of(settings));
  MODCACHE_ASSIGN_OR_RETURN(auto make_backend, connect(settings));
  return std::shared_ptr<RemoteServer>(
      new RemoteServer(settings, parts, std::move(make_backend), listener, std::move(on_change)));
}

// Keys of teams with different secrets have different names, so that neither takes the other's
// entries for damaged ones, or replaces them.
RemoteServer::RemoteServer(const Settings& settings, const Parts& parts,
                           remote::Client::MakeBackend make_backend,
                           remote::WriteBehind::Listener& listener,
                           remote::Client::OnChange on_change)
    : prefix_(parts.prefix +
              (parts.secret.empty() ? "" : "/" + remote::Seal(parts.secret).key_name())),
      timeout_(settings.remote_timeout_ms),
      seal_(parts.secret),
      generations_(seal_, prefix_, settings.name_space),
      claims_(seal_, prefix_),
      client_(std::move(make_backend), std::move(on_change)),
      writes_(
          client_,
          {settings.remote_queue_bytes, settings.remote_ttl_s * 1000, timeout_ * kTimesForWrites},
          listener) {}

Result<remote::Generations::Current> RemoteServer::find_or_make_generation(
    const std::string& scope) {
  if (const auto known = generations_.current(scope)) return *known;
  // The work may go on when nobody waits for it any more, so it has its answer in what it owns.
  const auto made = std::make_shared<remote::Generations::Current>();
  const Status status = client_.run(
      [self = shared_from_this(), scope, made](remote::Backend& backend) -> Status {
        MODCACHE_ASSIGN_OR_RETURN(*made, self->generations_.find_or_make(scope, backend));
        return Status::ok();
      },
      timeout_* kTimesForWrites);
  if (!status.is_ok()) return status;
  return *made;
}

}  // namespace modcache::cache
