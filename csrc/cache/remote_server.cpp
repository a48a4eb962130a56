// SPDX-License-Identifier: Apache-2.0
#include "cache/remote_server.h"

#include <cstdlib>
#include <string_view>
#include <utility>

#include "remote/address.h"
#include "remote/engine_library.h"

namespace modcache::cache {
namespace {

// Nobody waits for a write, so it may take several times as long as a call waits.
constexpr int kTimesForWrites = 8;
// Results that wait to be written take at most so much.
constexpr std::uint64_t kQueueBytes = 256'000'000;

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

ConnectRemote connect_by_library_in(std::vector<std::string> folders) {
  return [folders =
              std::move(folders)](const Settings& settings) -> Result<remote::Client::MakeBackend> {
    MODCACHE_ASSIGN_OR_RETURN(remote::Address address, remote::parse_address(settings.remote));
    MODCACHE_RETURN_IF_ERROR(remote::read_credentials(address));
    MODCACHE_ASSIGN_OR_RETURN(remote::BackendFactory factory, remote::open_engine_library(folders));
    const remote::BackendOptions options{std::move(address), settings.remote_timeout_ms};
    return remote::Client::MakeBackend(
        [factory = std::move(factory), options] { return factory(options); });
  };
}

Result<remote::Client::MakeBackend> connect_by_library(const Settings& settings) {
  return connect_by_library_in({})(settings);
}

Result<std::shared_ptr<RemoteServer>> RemoteServer::open(const Settings& settings,
                                                         const ConnectRemote& connect,
                                                         remote::WriteBehind::Listener& listener,
                                                         remote::Client::OnChange on_change) {
  MODCACHE_ASSIGN_OR_RETURN(RemoteNames names, RemoteNames::of(settings));
  MODCACHE_ASSIGN_OR_RETURN(auto make_backend, connect(settings));
  return std::shared_ptr<RemoteServer>(new RemoteServer(
      settings, std::move(names), std::move(make_backend), listener, std::move(on_change)));
}

RemoteServer::RemoteServer(const Settings& settings, RemoteNames names,
                           remote::Client::MakeBackend make_backend,
                           remote::WriteBehind::Listener& listener,
                           remote::Client::OnChange on_change)
    : names_(std::move(names)),
      timeout_(settings.remote_timeout_ms),
      generations_(names_.seal(), names_.prefix(), settings.name_space),
      client_(std::move(make_backend), std::move(on_change)),
      writes_(client_, {kQueueBytes, settings.remote_ttl_s * 1000, timeout_ * kTimesForWrites},
              listener) {}

// The work may go on when nobody waits for it any more, so it has its answer in what it owns.
remote::Client::Work RemoteServer::finding_generation(
    const std::string& scope, const std::shared_ptr<remote::Generations::Current>& found) {
  return [self = shared_from_this(), scope, found](remote::Backend& backend) -> Status {
    MODCACHE_ASSIGN_OR_RETURN(*found, self->generations_.find_or_make(scope, backend));
    return Status::ok();
  };
}

Result<remote::Generations::Current> RemoteServer::find_or_make_generation(
    const std::string& scope) {
  if (const auto known = generations_.current(scope)) return *known;
  const auto found = std::make_shared<remote::Generations::Current>();
  const auto deadline = remote::Client::Clock::now() + timeout_ * kTimesForWrites;
  // A writer waits for it, which must not hold up who lets go of the server.
  const Status status = client_.run_to_end(
      finding_generation(scope, found), timeout_ * kTimesForWrites,
      [this, deadline] { return is_stopping_.load() || remote::Client::Clock::now() >= deadline; });
  // The queue of writes would take kNotFound to say that there is nothing to be written.
  if (status.is_not_found()) return Status::io_error(status.message());
  if (!status.is_ok()) return status;
  return *found;
}

std::optional<remote::Generations::Current> RemoteServer::generation_now(const std::string& scope) {
  if (auto known = generations_.current(scope)) return known;
  const auto found = std::make_shared<remote::Generations::Current>();
  const Status status = client_.run(finding_generation(scope, found), timeout_);
  return status.is_ok() ? std::optional(*found) : std::nullopt;
}

void RemoteServer::stop() {
  is_stopping_ = true;
  writes_.stop();
  client_.stop();
}

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
