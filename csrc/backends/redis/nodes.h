// SPDX-License-Identifier: Apache-2.0
//
// Nodes: the server or servers behind one address, to which commands go.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backends/redis/exchange.h"
#include "backends/redis/reply.h"
#include "base/result.h"
#include "base/status.h"
#include "remote/engine_library.h"

namespace modcache::backends {

class Nodes {
 public:
  virtual ~Nodes() = default;

  // Sends all commands, in one round trip for each node, and gives each its reply; null where there
  // was none. The status is the first failure of a node; replies that are errors are none.
  // A cluster's answers that a key is elsewhere are followed once.
  virtual Status exchange(const std::vector<Command>& commands, std::vector<ReplyPtr>& replies) = 0;

  // Whether commands about several keys go to one node, so that they can be one command.
  virtual bool is_one_server() const = 0;

  // Calls `visit` with a way to ask each node that has keys of its own.
  using Ask = std::function<ReplyPtr(const Command&, Status&)>;
  virtual Status for_each_node(const std::function<Status(const Ask&)>& visit) = 0;

  // The last exchange met a server that must not be written to, so another one may be the primary.
  virtual void look_for_primary() = 0;
};

Result<std::unique_ptr<Nodes>> make_one_server(const remote::BackendOptions& options);
Result<std::unique_ptr<Nodes>> make_cluster(const remote::BackendOptions& options);

}  // namespace modcache::backends
