// SPDX-License-Identifier: Apache-2.0
//
// One server, or whichever of several is the primary.
#include <valkey/valkey.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "backends/redis/nodes.h"
#include "backends/redis/tls.h"

namespace modcache::backends {
namespace {

class OneServer final : public Nodes {
 public:
  OneServer(const remote::BackendOptions& options, TlsSettings tls)
      : Nodes(options), tls_(std::move(tls)), connection_(nullptr, &close_at_once) {}

  Status exchange(const std::vector<Command>& commands, std::vector<ReplyPtr>& replies) override {
    return exchange_until(deadline_in(has_several() ? exchange_ms() : options_.timeout_ms),
                          commands, replies);
  }
  bool is_one_server() const override { return true; }
  void look_for_primary() override {
    if (has_several()) connection_.reset();
  }
  Status ping() override;

 private:
  bool has_several() const { return options_.address.hosts.size() > 1; }
  std::string health_name(std::size_t host) const;
  void note_failure(std::size_t host, const Status& failure) const;
  std::vector<std::size_t> hosts_in_turn() const;
  Status connect(Deadline deadline);
  Status connect_to_primary(Deadline deadline);
  ContextPtr connect_to_database(const remote::Host* host, Deadline deadline, Status& status) const;
  static bool is_primary(valkeyContext& connection, Deadline deadline, Status& status);
  Status exchange_until(Deadline deadline, const std::vector<Command>& commands,
                        std::vector<ReplyPtr>& replies);

  const TlsSettings tls_;
  ContextPtr connection_;
  std::size_t host_ = 0;  // the one that is connected to, or was last
};

ContextPtr OneServer::connect_to_database(const remote::Host* host, Deadline deadline,
                                          Status& status) const {
  const remote::Address& address = options_.address;
  ContextPtr connection = connect_to(host, address, tls_, deadline, status);
  if (connection == nullptr) return connection;
  std::string_view database = address.parameter("db");
  if (database.empty() && !address.hosts.empty() && address.path.size() > 1) {
    database = std::string_view(address.path).substr(1);
  }
  if (database.empty() || database == "0") return connection;
  const ReplyPtr reply = ask(*connection, {{"SELECT", database}, nullptr}, deadline, status);
  if (status.is_ok()) status = status_of(reply);
  if (!status.is_ok()) connection.reset();
  return connection;
}

bool OneServer::is_primary(valkeyContext& connection, Deadline deadline, Status& status) {
  const ReplyPtr reply = ask(connection, {{"ROLE"}, nullptr}, deadline, status);
  if (reply == nullptr || reply->type != VALKEY_REPLY_ARRAY || reply->elements == 0) return false;
  const SharedBytes role = bytes_of_element(reply, 0);
  return role.owner != nullptr && role.view() == "master";
}

std::string OneServer::health_name(std::size_t host) const {
  const remote::Host& named = options_.address.hosts[host];
  return named.name + ":" + std::to_string(named.port);
}

// A host that hangs costs time, which one that refuses a connection does not.
void OneServer::note_failure(std::size_t host, const Status& failure) const {
  if (!has_several() || failure.code() != StatusCode::kBusy) return;
  NodeHealth::instance().note_failure(health_name(host));
}

// The one that was good last comes first, and those last that hung and were not well again.
std::vector<std::size_t> OneServer::hosts_in_turn() const {
  std::vector<std::size_t> hosts(options_.address.hosts.size());
  std::iota(hosts.begin(), hosts.end(), std::size_t{0});
  std::rotate(hosts.begin(), hosts.begin() + static_cast<std::ptrdiff_t>(host_), hosts.end());
  put_first(hosts, [this](std::size_t host) {
    return !NodeHealth::instance().has_failed(health_name(host));
  });
  return hosts;
}

Status OneServer::connect(Deadline deadline) {
  if (has_several()) return connect_to_primary(deadline);
  const auto& hosts = options_.address.hosts;
  Status status;
  connection_ = connect_to_database(hosts.empty() ? nullptr : &hosts.front(), deadline, status);
  return status;
}

// Takes the primary of several hosts, else one that can at least be read. Each host has half of the
// time that is left, so that one which hangs leaves some to the next, and to the commands.
Status OneServer::connect_to_primary(Deadline deadline) {
  Status first_failure;
  const std::vector<std::size_t> hosts = hosts_in_turn();
  for (const std::size_t host : hosts) {
    const bool is_left_alone = NodeHealth::instance().is_left_alone(health_name(host));
    if (connection_ != nullptr && is_left_alone) break;
    if (is_over(deadline)) break;
    const bool is_last_hope = connection_ == nullptr && host == hosts.back();
    const Deadline until = is_last_hope ? deadline : half_way_to(deadline);
    Status status;
    ContextPtr candidate = connect_to_database(&options_.address.hosts[host], until, status);
    const bool is_best = candidate != nullptr && is_primary(*candidate, until, status);
    if (!status.is_ok()) {
      note_failure(host, status);
      if (first_failure.is_ok()) first_failure = status;
      continue;
    }
    NodeHealth::instance().note_success(health_name(host));
    if (is_best || connection_ == nullptr) {
      connection_ = std::move(candidate);
      host_ = host;
    }
    if (is_best) break;
  }
  if (connection_ != nullptr) return Status::ok();
  return first_failure.is_ok() ? Status::busy("no time was left to connect") : first_failure;
}

Status OneServer::exchange_until(Deadline deadline, const std::vector<Command>& commands,
                                 std::vector<ReplyPtr>& replies) {
  if (connection_ != nullptr && !has_no_error(*connection_)) connection_.reset();
  const bool is_used = connection_ != nullptr;
  replies.assign(commands.size(), nullptr);
  if (!is_used) MODCACHE_RETURN_IF_ERROR(connect(deadline));
  Status status = ask_all(*connection_, commands, deadline, replies);
  // A server that was started again has closed what was left idle, which is no failure of it.
  const bool was_closed = status.code() == StatusCode::kIoError && replies.front() == nullptr;
  if (is_used && was_closed) {
    connection_.reset();
    MODCACHE_RETURN_IF_ERROR(connect(deadline));
    status = ask_all(*connection_, commands, deadline, replies);
  }
  if (!status.is_ok()) {
    connection_.reset();
    note_failure(host_, status);
  }
  return status;
}

Status OneServer::ping() {
  std::vector<ReplyPtr> replies;
  // It may have to find out that a host hangs.
  const Deadline deadline = deadline_in((has_several() ? 2 : 1) * options_.timeout_ms);
  MODCACHE_RETURN_IF_ERROR(exchange_until(deadline, {{{"EXISTS", kPingKey}, nullptr}}, replies));
  return status_of(replies.front());
}

}  // namespace

Result<std::unique_ptr<Nodes>> make_one_server(const remote::BackendOptions& options) {
  MODCACHE_ASSIGN_OR_RETURN(TlsSettings tls, TlsSettings::of(options.address));
  return std::unique_ptr<Nodes>(std::make_unique<OneServer>(options, std::move(tls)));
}

}  // namespace modcache::backends
