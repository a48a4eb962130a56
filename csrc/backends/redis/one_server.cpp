// SPDX-License-Identifier: Apache-2.0
//
// One server, or whichever of several is the primary.
#include <valkey/valkey.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "backends/redis/nodes.h"
#include "backends/redis/tls.h"

namespace modcache::backends {
namespace {

using ContextPtr = std::unique_ptr<valkeyContext, decltype(&valkeyFree)>;

class OneServer final : public Nodes {
 public:
  OneServer(const remote::BackendOptions& options, TlsSettings tls)
      : options_(options), tls_(std::move(tls)), connection_(nullptr, &valkeyFree) {}

  Status exchange(const std::vector<Command>& commands, std::vector<ReplyPtr>& replies) override;
  bool is_one_server() const override { return true; }
  Status for_each_node(const std::function<Status(const Ask&)>& visit) override;
  void look_for_primary() override {
    if (options_.address.hosts.size() > 1) connection_.reset();
  }

 private:
  Deadline deadline() const {
    return std::chrono::steady_clock::now() + std::chrono::milliseconds(options_.timeout_ms);
  }
  Status connect(Deadline deadline);
  ContextPtr connect_to(const remote::Host* host, Deadline deadline, Status& status) const;
  Status greet(valkeyContext& connection, Deadline deadline) const;
  static bool is_primary(valkeyContext& connection, Deadline deadline);
  Status exchange_once(const std::vector<Command>& commands, std::vector<ReplyPtr>& replies,
                       Deadline deadline);

  const remote::BackendOptions options_;
  const TlsSettings tls_;
  ContextPtr connection_;
};

Status OneServer::greet(valkeyContext& connection, Deadline deadline) const {
  const remote::Address& address = options_.address;
  Status status;
  if (!address.password.empty()) {
    Command command{{"AUTH"}};
    if (!address.user.empty()) command.arguments.emplace_back(address.user);
    command.arguments.emplace_back(address.password);
    const ReplyPtr reply = ask(connection, command, deadline, status);
    if (!status.is_ok()) return status;
    if (is_error(reply)) {
      return Status::invalid_argument("it refuses the credentials: " + std::string(text_of(reply)));
    }
  }
  std::string_view database = address.parameter("db");
  if (database.empty() && !address.hosts.empty() && address.path.size() > 1) {
    database = std::string_view(address.path).substr(1);
  }
  if (database.empty() || database == "0") return Status::ok();
  const ReplyPtr reply = ask(connection, {{"SELECT", database}}, deadline, status);
  return status.is_ok() ? status_of(reply) : status;
}

ContextPtr OneServer::connect_to(const remote::Host* host, Deadline deadline,
                                 Status& status) const {
  const timeval timeout = time_of(options_.timeout_ms);
  valkeyOptions how{};
  how.connect_timeout = &timeout;
  how.command_timeout = &timeout;
  if (host != nullptr) {
    VALKEY_OPTIONS_SET_TCP(&how, host->name.c_str(), host->port);
    how.options |= VALKEY_OPT_PREFER_IP_UNSPEC;
  } else {
    VALKEY_OPTIONS_SET_UNIX(&how, options_.address.path.c_str());
  }
  ContextPtr connection(valkeyConnectWithOptions(&how), &valkeyFree);
  if (connection == nullptr) {
    status = Status::no_space("no memory for a connection");
    return connection;
  }
  tls_.start(*connection);
  status = connection->err != 0 ? failure_of(*connection) : greet(*connection, deadline);
  if (!status.is_ok()) connection.reset();
  return connection;
}

bool OneServer::is_primary(valkeyContext& connection, Deadline deadline) {
  Status status;
  const ReplyPtr reply = ask(connection, {{"ROLE"}}, deadline, status);
  if (reply == nullptr || reply->type != VALKEY_REPLY_ARRAY || reply->elements == 0) return false;
  const SharedBytes role = bytes_of_element(reply, 0);
  return role.owner != nullptr && role.view() == "master";
}

// Takes the primary of several hosts, else one that can at least be read.
Status OneServer::connect(Deadline deadline) {
  Status status;
  if (options_.address.hosts.size() < 2) {
    const remote::Host* const host =
        options_.address.hosts.empty() ? nullptr : &options_.address.hosts.front();
    connection_ = connect_to(host, deadline, status);
    return status;
  }
  Status first_failure;
  for (const remote::Host& host : options_.address.hosts) {
    ContextPtr candidate = connect_to(&host, deadline, status);
    if (candidate == nullptr) {
      if (first_failure.is_ok()) first_failure = status;
      continue;
    }
    const bool is_best = is_primary(*candidate, deadline);
    if (is_best || connection_ == nullptr) connection_ = std::move(candidate);
    if (is_best) return Status::ok();
  }
  return connection_ != nullptr ? Status::ok() : first_failure;
}

Status OneServer::exchange_once(const std::vector<Command>& commands,
                                std::vector<ReplyPtr>& replies, Deadline deadline) {
  for (const Command& command : commands) {
    MODCACHE_RETURN_IF_ERROR(append(*connection_, command));
  }
  MODCACHE_RETURN_IF_ERROR(write_all(*connection_, deadline));
  Status status;
  for (ReplyPtr& reply : replies) {
    reply = read_reply(*connection_, deadline, status);
    if (!status.is_ok()) return status;
  }
  return Status::ok();
}

Status OneServer::exchange(const std::vector<Command>& commands, std::vector<ReplyPtr>& replies) {
  const Deadline until = deadline();
  const bool is_used = connection_ != nullptr;
  replies.assign(commands.size(), nullptr);
  if (!is_used) MODCACHE_RETURN_IF_ERROR(connect(until));
  Status status = exchange_once(commands, replies, until);
  if (status.is_ok()) return status;
  connection_.reset();
  // A server that was started again has closed what was left idle, which is no failure of it.
  const bool was_closed = status.code() == StatusCode::kIoError && replies.front() == nullptr;
  if (!is_used || !was_closed) return status;
  MODCACHE_RETURN_IF_ERROR(connect(until));
  status = exchange_once(commands, replies, until);
  if (!status.is_ok()) connection_.reset();
  return status;
}

Status OneServer::for_each_node(const std::function<Status(const Ask&)>& visit) {
  return visit([this](const Command& command, Status& status) -> ReplyPtr {
    std::vector<ReplyPtr> replies;
    status = exchange({command}, replies);
    return status.is_ok() ? replies.front() : nullptr;
  });
}

}  // namespace

Result<std::unique_ptr<Nodes>> make_one_server(const remote::BackendOptions& options) {
  MODCACHE_ASSIGN_OR_RETURN(TlsSettings tls, TlsSettings::of(options.address));
  return std::unique_ptr<Nodes>(std::make_unique<OneServer>(options, std::move(tls)));
}

}  // namespace modcache::backends
