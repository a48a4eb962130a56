// SPDX-License-Identifier: Apache-2.0
//
// A cluster: keys are spread over nodes by their slot. The map of slots, the connections and the
// round trips are made here, all nodes at once and each wait bounded by the exchange's deadline:
// libvalkey's own client of clusters asks one node after the other, and waits for one that hangs.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/redis/nodes.h"
#include "backends/redis/tls.h"

namespace modcache::backends {
namespace {

// The map of slots is asked for at most so often: while slots move, each reply says so.
constexpr auto kBetweenMaps = std::chrono::milliseconds(100);
// While a node is left alone, another one may have taken over its slots.
constexpr auto kBetweenMapsOfFailures = std::chrono::seconds(1);

// A node that answered so lately still answers.
constexpr auto kStillWell = std::chrono::milliseconds(100);
// A node is not tried in less than this part of the time that an exchange has.
constexpr std::int64_t kLeastPart = 16;

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

std::string name_of(const remote::Host& host) {
  return host.name + ":" + std::to_string(host.port);
}

remote::Host host_of(const std::string& node) {
  const std::size_t colon = std::min(node.rfind(':'), node.size());
  const long port = std::strtol(node.c_str() + std::min(colon + 1, node.size()), nullptr, 10);
  return {node.substr(0, colon), static_cast<std::uint16_t>(port)};
}

class Cluster final : public Nodes {
 public:
  Cluster(const remote::BackendOptions& options, TlsSettings tls)
      : Nodes(options), tls_(std::move(tls)) {}

  Status exchange(const std::vector<Command>& commands, std::vector<ReplyPtr>& replies) override;
  bool is_one_server() const override { return false; }
  void look_for_primary() override { wants_map_ = true; }
  Status ping() override;

 private:
  // The commands of one exchange that go to one node.
  struct Part {
    std::string node;
    std::vector<std::size_t> which;
  };
  // Ok: this answer will do.
  using Accept = std::function<Status(const std::string& node, const ReplyPtr& reply)>;
  enum class Who { kHealthy, kAll };  // whether those are asked that failed a moment ago

  bool another_node_answers();
  Status ask_any(const Command& command, Who who, Deadline deadline, const Accept& accept);
  std::vector<std::string> candidates() const;
  Status update_map(Deadline deadline);
  bool update_map_if_due(Deadline deadline);
  std::vector<Part> parts_of(const std::vector<Command>& commands,
                             const std::vector<std::size_t>& which, Status& failure);
  void exchange_once(const std::vector<Command>& commands, const std::vector<std::size_t>& which,
                     Deadline deadline, std::vector<ReplyPtr>& replies, Status& failure);
  void follow_asks(const std::vector<Command>& commands, Deadline deadline,
                   std::vector<ReplyPtr>& replies);
  valkeyContext* open_connection(const std::string& node) const;
  // Null, with the failure in `status`, where the node cannot be connected to.
  valkeyContext* connect(const std::string& node, Deadline deadline, Status& status);
  // Null, too, while the node is left alone.
  valkeyContext* connection_to(const std::string& node, Deadline deadline, Status& first_failure);
  void note_outcome(const std::string& node, const Status& status, Status& first_failure);

  const TlsSettings tls_;
  SlotMap map_;
  std::map<std::string, ContextPtr> connections_;
  bool wants_map_ = false;
  Deadline map_at_{};
  Deadline answered_at_{};  // when some node did last
};

void Cluster::note_outcome(const std::string& node, const Status& status, Status& first_failure) {
  if (status.is_ok()) {
    NodeHealth::instance().note_success(node);
    answered_at_ = std::chrono::steady_clock::now();
    return;
  }
  // A node that refuses the credentials answers.
  if (status.code() != StatusCode::kInvalidArgument) NodeHealth::instance().note_failure(node);
  wants_map_ = true;
  if (first_failure.is_ok()) first_failure = status;
}

valkeyContext* Cluster::open_connection(const std::string& node) const {
  const auto found = connections_.find(node);
  const bool is_open = found != connections_.end() && has_no_error(*found->second);
  return is_open ? found->second.get() : nullptr;
}

valkeyContext* Cluster::connect(const std::string& node, Deadline deadline, Status& status) {
  if (valkeyContext* const open = open_connection(node)) return open;
  connections_.erase(node);
  const remote::Host host = host_of(node);
  ContextPtr made = connect_to(&host, options_.address, tls_, deadline, status);
  if (made == nullptr) return nullptr;
  return connections_.emplace(node, std::move(made)).first->second.get();
}

valkeyContext* Cluster::connection_to(const std::string& node, Deadline deadline,
                                      Status& first_failure) {
  // So little time would make a node that is well seem to hang.
  if (is_over(deadline - std::chrono::milliseconds(exchange_ms() / kLeastPart))) {
    if (first_failure.is_ok()) first_failure = Status::busy("no time was left for " + node);
    return nullptr;
  }
  if (!NodeHealth::instance().may_try(node)) {
    if (is_over(map_at_ + kBetweenMapsOfFailures)) wants_map_ = true;
    if (first_failure.is_ok()) first_failure = Status::busy(node + " is left alone");
    return nullptr;
  }
  Status status;
  valkeyContext* const connection = connect(node, deadline, status);
  if (connection == nullptr) note_outcome(node, status, first_failure);
  return connection;
}

// The nodes that are known, those last that failed and were not seen to be well again.
std::vector<std::string> Cluster::candidates() const {
  std::vector<std::string> nodes = map_.nodes();
  for (const remote::Host& host : options_.address.hosts) {
    if (!map_.has(name_of(host))) nodes.push_back(name_of(host));
  }
  put_first(nodes,
            [](const std::string& node) { return !NodeHealth::instance().has_failed(node); });
  return nodes;
}

// Asks one node after the other until an answer is accepted. One that hangs takes a quarter of a
// time-out at most, as a call may wait for this and has to do its work then.
Status Cluster::ask_any(const Command& command, Who who, Deadline deadline, const Accept& accept) {
  Status failure;
  const std::vector<std::string> nodes = candidates();
  for (std::size_t i = 0; i < nodes.size() && !is_over(deadline); ++i) {
    if (who == Who::kHealthy && NodeHealth::instance().is_left_alone(nodes[i])) break;
    const Deadline in_a_quarter = deadline_in(options_.timeout_ms / 4);
    const Deadline until =
        i + 1 < nodes.size() ? std::min(half_way_to(deadline), in_a_quarter) : deadline;
    Status status;
    ReplyPtr reply;
    valkeyContext* const connection = connect(nodes[i], until, status);
    if (connection != nullptr) reply = ask(*connection, command, until, status);
    note_outcome(nodes[i], status, failure);
    if (reply == nullptr) continue;
    status = accept(nodes[i], reply);
    if (status.is_ok()) return status;
    if (failure.is_ok()) failure = Status(status.code(), nodes[i] + ": " + status.message());
  }
  return failure.is_ok() ? Status::io_error("there is no node to ask") : failure;
}

Status Cluster::update_map(Deadline deadline) {
  map_at_ = std::chrono::steady_clock::now();
  const Who who = map_.nodes().empty() ? Who::kAll : Who::kHealthy;
  const Accept take = [this](const std::string& node, const ReplyPtr& reply) {
    const Status refused = status_of(reply);
    auto map = SlotMap::of(reply, host_of(node).name);
    if (!map.has_value() && refused.is_ok()) return Status::io_error("it knows of no slots");
    if (!map.has_value()) return refused;
    map_ = std::move(*map);
    return Status::ok();
  };
  MODCACHE_RETURN_IF_ERROR(ask_any({{"CLUSTER", "SLOTS"}, nullptr}, who, deadline, take));
  wants_map_ = false;
  for (auto it = connections_.begin(); it != connections_.end();) {
    it = map_.has(it->first) ? std::next(it) : connections_.erase(it);
  }
  return Status::ok();
}

bool Cluster::update_map_if_due(Deadline deadline) {
  return wants_map_ && is_over(map_at_ + kBetweenMaps) && update_map(deadline).is_ok();
}

// Those come first that have a connection, as the others hang, if they do, in connecting.
std::vector<Cluster::Part> Cluster::parts_of(const std::vector<Command>& commands,
                                             const std::vector<std::size_t>& which,
                                             Status& failure) {
  std::vector<Part> parts;
  std::map<const std::string*, std::size_t> place_of;
  for (const std::size_t i : which) {
    const std::string* const node = map_.node_of(*commands[i].key);
    if (node == nullptr) {
      wants_map_ = true;
      if (failure.is_ok()) failure = Status::io_error("no node has the slot of a key");
      continue;
    }
    const auto [place, is_new] = place_of.emplace(node, parts.size());
    if (is_new) parts.push_back({*node, {}});
    parts[place->second].which.push_back(i);
  }
  put_first(parts, [this](const Part& part) { return open_connection(part.node) != nullptr; });
  return parts;
}

void Cluster::exchange_once(const std::vector<Command>& commands,
                            const std::vector<std::size_t>& which, Deadline deadline,
                            std::vector<ReplyPtr>& replies, Status& failure) {
  const std::vector<Part> parts = parts_of(commands, which, failure);
  std::vector<Pipeline> pipelines;
  std::vector<const Part*> asked;
  for (const Part& part : parts) {
    valkeyContext* const connection = connection_to(part.node, half_way_to(deadline), failure);
    if (connection == nullptr) continue;
    asked.push_back(&part);
    pipelines.emplace_back(*connection, part.which);
    pipelines.back().start(commands);
  }
  Pipeline::finish(pipelines, deadline, replies);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    note_outcome(asked[i]->node, pipelines[i].status(), failure);
  }
}

// A slot that is being moved: the node that gets it answers those who were told to ask it.
void Cluster::follow_asks(const std::vector<Command>& commands, Deadline deadline,
                          std::vector<ReplyPtr>& replies) {
  std::map<std::string, std::vector<std::size_t>> which_of;
  for (std::size_t i = 0; i < replies.size(); ++i) {
    Elsewhere elsewhere = elsewhere_of(replies[i]);
    if (!elsewhere.is_ask) continue;
    // A node that does not know the other one's host takes it to be its own.
    const std::string* const asked = map_.node_of(*commands[i].key);
    if (elsewhere.node[0] == ':' && asked != nullptr) {
      elsewhere.node = host_of(*asked).name + elsewhere.node;
    }
    which_of[elsewhere.node].push_back(i);
  }
  for (const auto& [node, which] : which_of) {
    if (is_over(deadline)) return;
    Status failure;
    valkeyContext* const connection = connection_to(node, half_way_to(deadline), failure);
    if (connection == nullptr) continue;
    std::vector<Command> asked;
    for (const std::size_t i : which) {
      asked.push_back({{"ASKING"}, nullptr});
      asked.push_back(commands[i]);
    }
    std::vector<ReplyPtr> answers;
    note_outcome(node, ask_all(*connection, asked, deadline, answers), failure);
    for (std::size_t k = 0; k < which.size(); ++k) {
      if (answers[2 * k + 1] != nullptr) replies[which[k]] = answers[2 * k + 1];
    }
  }
}

Status Cluster::exchange(const std::vector<Command>& commands, std::vector<ReplyPtr>& replies) {
  const Deadline deadline = deadline_in(exchange_ms());
  replies.assign(commands.size(), nullptr);
  if (map_.nodes().empty()) MODCACHE_RETURN_IF_ERROR(update_map(half_way_to(deadline)));
  (void)update_map_if_due(half_way_to(deadline));
  Status failure;
  std::vector<std::size_t> which(commands.size());
  for (std::size_t i = 0; i < which.size(); ++i) which[i] = i;
  for (int attempt = 0; attempt < 2 && !which.empty(); ++attempt) {
    failure = Status::ok();
    exchange_once(commands, which, deadline, replies, failure);
    which.clear();
    for (std::size_t i = 0; i < replies.size(); ++i) {
      const bool is_moved = elsewhere_of(replies[i]).is_moved;
      if (is_moved) wants_map_ = true;
      if (replies[i] == nullptr || is_moved) which.push_back(i);
    }
    // A new map may have another node for what was not answered; without one there is no point.
    if (which.empty() || is_over(deadline) || !update_map_if_due(half_way_to(deadline))) break;
  }
  follow_asks(commands, deadline, replies);
  const bool any = std::any_of(replies.begin(), replies.end(),
                               [](const ReplyPtr& reply) { return reply != nullptr; });
  // Keys of nodes that do not answer are missing; only a cluster of which none answers has failed.
  return any || failure.is_ok() || another_node_answers() ? Status::ok() : failure;
}

// After a call to which no node replied. It asks one node, for a short time: together with the
// exchange that is less than the caller waits.
bool Cluster::another_node_answers() {
  if (!is_over(answered_at_ + kStillWell)) return true;
  const Deadline deadline = deadline_in(std::max<std::int64_t>(options_.timeout_ms / 8, 1));
  for (const std::string& node : candidates()) {
    valkeyContext* const connection = open_connection(node);
    if (connection == nullptr || NodeHealth::instance().is_left_alone(node)) continue;
    Status status;
    (void)ask(*connection, {{"EXISTS", kPingKey}, nullptr}, deadline, status);
    if (status.is_ok()) answered_at_ = std::chrono::steady_clock::now();
    return status.is_ok();
  }
  return false;
}

Status Cluster::ping() {
  // Nobody waits for a ping as long as for a call, and it may have to connect to several nodes.
  const Deadline deadline = deadline_in(2 * options_.timeout_ms);
  if (map_.nodes().empty()) MODCACHE_RETURN_IF_ERROR(update_map(deadline));
  return ask_any({{"EXISTS", kPingKey}, nullptr}, Who::kAll, deadline,
                 [this](const std::string&, const ReplyPtr& reply) {
                   const Elsewhere elsewhere = elsewhere_of(reply);
                   return elsewhere.is_moved || elsewhere.is_ask ? Status::ok() : status_of(reply);
                 });
}

}  // namespace

Result<std::unique_ptr<Nodes>> make_cluster(const remote::BackendOptions& options) {
  MODCACHE_ASSIGN_OR_RETURN(TlsSettings tls, TlsSettings::of(options.address));
  return std::unique_ptr<Nodes>(std::make_unique<Cluster>(options, std::move(tls)));
}

}  // namespace modcache::backends
