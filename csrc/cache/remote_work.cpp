// SPDX-License-Identifier: Apache-2.0
//
// RemoteTier: work that machines share.
#include <memory>
#include <utility>

#include "cache/remote_tier.h"
#include "remote/address.h"

namespace modcache::cache {
namespace {

constexpr std::chrono::seconds kLongestWriteOfPart{60};

bool can_hold_claims(const std::string& remote) {
  const auto address = remote::parse_address(remote);
  return address.is_ok() && (address.value().engine == remote::Engine::kRedis ||
                             address.value().engine == remote::Engine::kRedisCluster);
}

}  // namespace

Status RemoteTier::on_server(const std::function<Status(RemoteServer&, remote::Backend&)>& work) {
  if (!can_hold_claims(settings_.remote)) {
    return Status::invalid_argument("'" + shown_address_ +
                                    "' cannot share work: that needs Redis or Valkey");
  }
  const ServerPtr server = this->server();
  if (server == nullptr) return Status::busy("the remote cache is left alone for a while");
  return server->client().run(
      [server, work](remote::Backend& backend) { return work(*server, backend); },
      server->timeout());
}

Result<remote::Claims::Holder> RemoteTier::take_part(const std::string& part,
                                                     const std::string& owner,
                                                     std::int64_t ttl_ms) {
  const auto holder = std::make_shared<remote::Claims::Holder>(remote::Claims::Holder::kOthers);
  const Status status = on_server([=](RemoteServer& server, remote::Backend& backend) -> Status {
    MODCACHE_ASSIGN_OR_RETURN(*holder, server.claims().take(part, owner, ttl_ms, backend));
    return Status::ok();
  });
  if (!status.is_ok()) return status;
  return *holder;
}

Status RemoteTier::renew_part(const std::string& part, const std::string& owner,
                              std::int64_t ttl_ms) {
  return on_server([=](RemoteServer& server, remote::Backend& backend) {
    return server.claims().renew(part, owner, ttl_ms, backend).status();
  });
}

Status RemoteTier::end_part(const std::string& part, const std::string& owner,
                            std::int64_t ttl_ms) {
  const std::uint64_t dropped = dropped_.load(std::memory_order_acquire);
  const ServerPtr server = server_in_any_state();
  const bool is_written =
      server != nullptr &&
      server->writes().flush(remote::Client::Clock::now() + kLongestWriteOfPart).is_ok();
  // Something was dropped since the last part ended: it may be of this one.
  const bool is_done = is_written && dropped == dropped_at_last_part_.exchange(dropped) &&
                       dropped == dropped_.load(std::memory_order_acquire);
  return on_server([=](RemoteServer& its_server, remote::Backend& backend) {
    return is_done ? its_server.claims().mark_done(part, ttl_ms, backend)
                   : its_server.claims().give_back(part, owner, backend);
  });
}

Result<std::string> RemoteTier::generation_of(const std::string& scope) {
  const ServerPtr server = this->server();
  if (server == nullptr) return Status::busy("the remote cache is left alone for a while");
  MODCACHE_ASSIGN_OR_RETURN(const auto current, server->find_or_make_generation(scope));
  return std::to_string(current.generation.of_namespace) + "-" +
         std::to_string(current.generation.of_scope);
}

}  // namespace modcache::cache
