// SPDX-License-Identifier: Apache-2.0
//
// A cluster: keys are spread over nodes by their slot. libvalkey keeps the map of slots and the
// connections; the round trips are made here, all nodes at once, as its own pipeline asks one node
// after the other and hands back what a node says of moved slots.
#include <valkey/cluster.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "backends/redis/node_health.h"
#include "backends/redis/nodes.h"
#include "backends/redis/tls.h"

namespace modcache::backends {
namespace {

using ClusterPtr = std::unique_ptr<valkeyClusterContext, decltype(&valkeyClusterFree)>;
using Clock = std::chrono::steady_clock;

// The map of slots is asked for at most so often: while slots move, each reply says so.
constexpr auto kBetweenMaps = std::chrono::milliseconds(100);

// Where a reply says that a key is. ASK: for this question alone.
struct Elsewhere {
  bool is_moved = false;
  bool is_ask = false;
  std::string node;
};

Elsewhere elsewhere_of(const ReplyPtr& reply) {
  Elsewhere elsewhere;
  if (!is_error(reply)) return elsewhere;
  const std::string_view text = text_of(reply);
  elsewhere.is_moved = text.substr(0, 6) == "MOVED ";
  elsewhere.is_ask = text.substr(0, 4) == "ASK ";
  if (elsewhere.is_ask) elsewhere.node = std::string(text.substr(text.rfind(' ') + 1));
  return elsewhere;
}

class Cluster final : public Nodes {
 public:
  Cluster(const remote::BackendOptions& options, TlsSettings tls)
      : options_(options), tls_(std::move(tls)), cluster_(nullptr, &valkeyClusterFree) {
    for (const remote::Host& host : options.address.hosts) {
      if (!first_nodes_.empty()) first_nodes_ += ',';
      first_nodes_ += host.name + ":" + std::to_string(host.port);
    }
  }

  Status exchange(const std::vector<Command>& commands, std::vector<ReplyPtr>& replies) override;
  bool is_one_server() const override { return false; }
  Status for_each_node(const std::function<Status(const Ask&)>& visit) override;
  void look_for_primary() override { wants_map_ = true; }

 private:
  // The commands of one exchange that go to one node.
  struct Part {
    valkeyClusterNode* node = nullptr;
    valkeyContext* connection = nullptr;
    std::vector<std::size_t> which;
  };

  Status connect();
  bool update_map();
  std::vector<Part> parts_of(const std::vector<Command>& commands,
                             const std::vector<std::size_t>& which, Status& failure);
  // All nodes are asked before any is listened to.
  void ask_parts(const std::vector<Command>& commands, std::vector<Part>& parts, Deadline deadline,
                 Status& failure);
  void listen_to_parts(const std::vector<Part>& parts, Deadline deadline,
                       std::vector<ReplyPtr>& replies, Status& failure);
  void follow_asks(const std::vector<Command>& commands, Deadline deadline,
                   std::vector<ReplyPtr>& replies);
  valkeyContext* connection_to(valkeyClusterNode& node, Status& failure);
  void note_failure(const valkeyClusterNode& node, const Status& status, Status& first);
  valkeyClusterNode* find_node(const std::string& address);

  const remote::BackendOptions options_;
  const TlsSettings tls_;
  std::string first_nodes_;
  ClusterPtr cluster_;
  bool wants_map_ = false;
  Clock::time_point map_at_{};
};

Status Cluster::connect() {
  if (cluster_ != nullptr && cluster_->table != nullptr) return Status::ok();
  const remote::Address& address = options_.address;
  const timeval timeout = time_of(options_.timeout_ms);
  valkeyClusterOptions how{};
  how.initial_nodes = first_nodes_.c_str();
  how.connect_timeout = &timeout;
  how.command_timeout = &timeout;
  how.username = address.user.empty() ? nullptr : address.user.c_str();
  how.password = address.password.empty() ? nullptr : address.password.c_str();
  if (tls_.are_given()) {
    how.tls = const_cast<TlsSettings*>(&tls_);
    how.tls_init_fn = &TlsSettings::start_for_cluster;
  }
  cluster_ = ClusterPtr(valkeyClusterConnectWithOptions(&how), &valkeyClusterFree);
  if (cluster_ == nullptr) return Status::no_space("no memory for a connection");
  map_at_ = Clock::now();
  if (cluster_->err == 0 && cluster_->table != nullptr) return Status::ok();
  const std::string reason = cluster_->errstr;
  cluster_.reset();
  const bool is_refused =
      reason.find("NOAUTH") != std::string::npos || reason.find("WRONGPASS") != std::string::npos;
  const std::string text = "the cluster of " + first_nodes_ + ": " + reason;
  return is_refused ? Status::invalid_argument(text) : Status::io_error(text);
}

bool Cluster::update_map() {
  const auto now = Clock::now();
  if (now - map_at_ < kBetweenMaps) return false;
  map_at_ = now;
  wants_map_ = false;
  return valkeyClusterUpdateSlotmap(cluster_.get()) == VALKEY_OK;
}

void Cluster::note_failure(const valkeyClusterNode& node, const Status& status, Status& first) {
  NodeHealth::instance().note_failure(node.addr);
  wants_map_ = true;
  if (first.is_ok()) first = status;
}

valkeyContext* Cluster::connection_to(valkeyClusterNode& node, Status& failure) {
  if (NodeHealth::instance().is_left_alone(node.addr)) {
    if (failure.is_ok()) failure = Status::busy(std::string(node.addr) + " is left alone");
    return nullptr;
  }
  valkeyContext* const connection = valkeyClusterGetValkeyContext(cluster_.get(), &node);
  if (connection != nullptr && connection->err == 0) return connection;
  const std::string reason = connection != nullptr ? connection->errstr : cluster_->errstr;
  note_failure(node, Status::io_error(std::string(node.addr) + ": " + reason), failure);
  return nullptr;
}

std::vector<Cluster::Part> Cluster::parts_of(const std::vector<Command>& commands,
                                             const std::vector<std::size_t>& which,
                                             Status& failure) {
  std::vector<Part> parts;
  std::map<valkeyClusterNode*, std::size_t> place_of;
  for (const std::size_t i : which) {
    auto* const key = const_cast<char*>(commands[i].key->c_str());  // it is only read
    valkeyClusterNode* const node = valkeyClusterGetNodeByKey(cluster_.get(), key);
    if (node == nullptr) {
      wants_map_ = true;
      if (failure.is_ok()) failure = Status::io_error("no node has the slot of a key");
      continue;
    }
    const auto [place, is_new] = place_of.emplace(node, parts.size());
    if (is_new) parts.push_back({node, connection_to(*node, failure), {}});
    parts[place->second].which.push_back(i);
  }
  return parts;
}

void Cluster::ask_parts(const std::vector<Command>& commands, std::vector<Part>& parts,
                        Deadline deadline, Status& failure) {
  for (Part& part : parts) {
    if (part.connection == nullptr) continue;
    Status status;
    for (const std::size_t i : part.which) {
      if (status.is_ok()) status = append(*part.connection, commands[i]);
    }
    if (status.is_ok()) status = write_all(*part.connection, deadline);
    if (status.is_ok()) continue;
    note_failure(*part.node, status, failure);
    part.connection = nullptr;
  }
}

void Cluster::listen_to_parts(const std::vector<Part>& parts, Deadline deadline,
                              std::vector<ReplyPtr>& replies, Status& failure) {
  for (const Part& part : parts) {
    if (part.connection == nullptr) continue;
    Status status;
    for (const std::size_t i : part.which) {
      replies[i] = read_reply(*part.connection, deadline, status);
      if (!status.is_ok()) break;
      if (elsewhere_of(replies[i]).is_moved) wants_map_ = true;
    }
    if (status.is_ok()) {
      NodeHealth::instance().note_success(part.node->addr);
    } else {
      note_failure(*part.node, status, failure);
    }
  }
}

valkeyClusterNode* Cluster::find_node(const std::string& address) {
  valkeyClusterNodeIterator nodes;
  valkeyClusterInitNodeIterator(&nodes, cluster_.get());
  while (valkeyClusterNode* const node = valkeyClusterNodeNext(&nodes)) {
    if (address == node->addr) return node;
  }
  return nullptr;
}

// A slot that is being moved: the node that gets it answers those who were told to ask it.
void Cluster::follow_asks(const std::vector<Command>& commands, Deadline deadline,
                          std::vector<ReplyPtr>& replies) {
  for (std::size_t i = 0; i < replies.size(); ++i) {
    const Elsewhere elsewhere = elsewhere_of(replies[i]);
    if (!elsewhere.is_ask) continue;
    valkeyClusterNode* const node = find_node(elsewhere.node);
    Status status;
    valkeyContext* const connection = node != nullptr ? connection_to(*node, status) : nullptr;
    if (connection == nullptr) {
      wants_map_ = true;
      continue;
    }
    (void)ask(*connection, {{"ASKING"}}, deadline, status);
    if (status.is_ok()) replies[i] = ask(*connection, commands[i], deadline, status);
  }
}

Status Cluster::exchange(const std::vector<Command>& commands, std::vector<ReplyPtr>& replies) {
  const Deadline deadline = Clock::now() + std::chrono::milliseconds(options_.timeout_ms);
  replies.assign(commands.size(), nullptr);
  MODCACHE_RETURN_IF_ERROR(connect());
  if (wants_map_) update_map();
  Status failure;
  std::vector<std::size_t> which(commands.size());
  for (std::size_t i = 0; i < which.size(); ++i) which[i] = i;
  for (int attempt = 0; attempt < 2 && !which.empty(); ++attempt) {
    failure = Status::ok();
    std::vector<Part> parts = parts_of(commands, which, failure);
    ask_parts(commands, parts, deadline, failure);
    listen_to_parts(parts, deadline, replies, failure);
    which.clear();
    for (std::size_t i = 0; i < replies.size(); ++i) {
      if (replies[i] == nullptr || elsewhere_of(replies[i]).is_moved) which.push_back(i);
    }
    // A new map may have another node for what was not answered; without one there is no point.
    const bool is_over = Clock::now() >= deadline;
    if (which.empty() || is_over || !wants_map_ || !update_map()) break;
  }
  follow_asks(commands, deadline, replies);
  const bool any = std::any_of(replies.begin(), replies.end(),
                               [](const ReplyPtr& reply) { return reply != nullptr; });
  // Keys of nodes that do not answer are missing; only a cluster of which none answers has failed.
  return any ? Status::ok() : failure;
}

Status Cluster::for_each_node(const std::function<Status(const Ask&)>& visit) {
  MODCACHE_RETURN_IF_ERROR(connect());
  valkeyClusterNodeIterator nodes;
  valkeyClusterInitNodeIterator(&nodes, cluster_.get());
  while (valkeyClusterNode* const node = valkeyClusterNodeNext(&nodes)) {
    const auto ask_node = [this, node](const Command& command, Status& status) -> ReplyPtr {
      const Deadline deadline = Clock::now() + std::chrono::milliseconds(options_.timeout_ms);
      valkeyContext* const connection = connection_to(*node, status);
      return connection == nullptr ? nullptr : ask(*connection, command, deadline, status);
    };
    MODCACHE_RETURN_IF_ERROR(visit(ask_node));
  }
  return Status::ok();
}

}  // namespace

Result<std::unique_ptr<Nodes>> make_cluster(const remote::BackendOptions& options) {
  MODCACHE_ASSIGN_OR_RETURN(TlsSettings tls, TlsSettings::of(options.address));
  return std::unique_ptr<Nodes>(std::make_unique<Cluster>(options, std::move(tls)));
}

}  // namespace modcache::backends
