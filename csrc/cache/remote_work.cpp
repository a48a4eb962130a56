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

std::string held_part(const std::string& part, const std::string& owner) {
  return owner + '\0' + part;
}

bool can_hold_claims(const std::string& remote) {
  const auto address = remote::parse_address(remote);
  return address.is_ok() && (address.value().engine == remote::Engine::kRedis ||
                             address.value().engine == remote::Engine::kRedisCluster);
}

}  // namespace

template <typename T>
Result<T> RemoteTier::ask_claims(
    const std::function<Result<T>(const remote::Claims&, remote::Backend&)>& question) {
  if (!can_hold_claims(settings_.remote)) {
    return Status::invalid_argument("'" + shown_address_ +
                                    "' cannot share work: that needs Redis or Valkey");
  }
  const ServerPtr server = this->server();
  if (server == nullptr) return Status::busy("the remote cache is left alone for a while");
  // The work may go on when nobody waits for it any more, so it owns its answer.
  const auto answer = std::make_shared<std::optional<T>>();
  const Status status = server->client().run(
      [server, question, answer](remote::Backend& backend) -> Status {
        MODCACHE_ASSIGN_OR_RETURN(*answer, question(server->claims(), backend));
        return Status::ok();
      },
      server->timeout());
  if (!status.is_ok()) return status;
  return std::move(**answer);
}

Result<remote::Claims::Holder> RemoteTier::take_part(const std::string& part,
                                                     const std::string& owner,
                                                     std::int64_t ttl_ms) {
  const std::uint64_t dropped = dropped_.load(std::memory_order_acquire);
  auto holder = ask_claims<remote::Claims::Holder>(
      [=](const remote::Claims& claims, remote::Backend& backend) {
        return claims.take(part, owner, ttl_ms, backend);
      });
  // Where the server cannot be asked, the caller does it as well.
  if (!holder.is_ok() || holder.value() == remote::Claims::Holder::kMine) {
    MutexLock lock(mutex_);
    dropped_before_part_[held_part(part, owner)] = dropped;
  }
  return holder;
}

Result<std::vector<remote::Claims::Holder>> RemoteTier::look_at_parts(
    const std::vector<std::string>& parts) {
  return ask_claims<std::vector<remote::Claims::Holder>>(
      [=](const remote::Claims& claims, remote::Backend& backend) {
        return claims.look(parts, backend);
      });
}

Result<std::string> RemoteTier::join_work(const std::string& work, const std::string& proposed,
                                          std::int64_t ttl_ms) {
  return ask_claims<std::string>([=](const remote::Claims& claims, remote::Backend& backend) {
    return claims.join(work, proposed, ttl_ms, backend);
  });
}

Result<bool> RemoteTier::renew_part(const std::string& part, const std::string& owner,
                                    std::int64_t ttl_ms) {
  return ask_claims<bool>([=](const remote::Claims& claims, remote::Backend& backend) {
    return claims.renew(part, owner, ttl_ms, backend);
  });
}

Status RemoteTier::give_part_back(const std::string& part, const std::string& owner) {
  {
    MutexLock lock(mutex_);
    dropped_before_part_.erase(held_part(part, owner));
  }
  return ask_claims<bool>(
             [=](const remote::Claims& claims, remote::Backend& backend) -> Result<bool> {
               MODCACHE_RETURN_IF_ERROR(claims.give_back(part, owner, backend));
               return true;
             })
      .status();
}

Result<bool> RemoteTier::end_part(const std::string& part, const std::string& owner,
                                  std::int64_t ttl_ms) {
  std::optional<std::uint64_t> dropped_before;  // nothing: it was not taken here
  {
    MutexLock lock(mutex_);
    if (auto taken = dropped_before_part_.extract(held_part(part, owner)))
      dropped_before = taken.mapped();
  }
  const ServerPtr server = server_in_any_state();
  const bool is_written =
      server != nullptr &&
      server->writes().flush(remote::Client::Clock::now() + kLongestWriteOfPart).is_ok();
  // Something was dropped since the part was taken: it may be of this one.
  const bool is_done = is_written && dropped_before == dropped_.load(std::memory_order_acquire);
  return ask_claims<bool>(
      [=](const remote::Claims& claims, remote::Backend& backend) -> Result<bool> {
        MODCACHE_RETURN_IF_ERROR(is_done ? claims.mark_done(part, ttl_ms, backend)
                                         : claims.give_back(part, owner, backend));
        return is_done;
      });
}

Result<std::string> RemoteTier::generation_of(const std::string& scope) {
  const ServerPtr server = this->server();
  if (server == nullptr) return Status::busy("the remote cache is left alone for a while");
  MODCACHE_ASSIGN_OR_RETURN(const auto current, server->find_or_make_generation(scope));
  return std::to_string(current.generation.of_namespace) + "-" +
         std::to_string(current.generation.of_scope) + "-" + std::to_string(current.not_before_us);
}

}  // namespace modcache::cache
