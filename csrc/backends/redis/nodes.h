// SPDX-License-Identifier: Apache-2.0
//
// Nodes: the server or servers behind one address, to which commands go.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/redis/exchange.h"
#include "backends/redis/reply.h"
#include "base/result.h"
#include "base/status.h"
#include "remote/engine_library.h"

namespace modcache::backends {

// Pings ask for this key, as a server that is loading, or a cluster that is down, answers PING as
// well as any other.
inline constexpr std::string_view kPingKey = "modcache:ping";

// Brings those to the front for which `is_first` holds, and changes no order besides.
// (std::stable_partition is deprecated in what clang reads of libstdc++.)
template <typename T, typename IsFirst>
void put_first(std::vector<T>& all, const IsFirst& is_first) {
  std::vector<T> rest;
  std::size_t kept = 0;
  for (T& one : all) {
    if (!is_first(one)) {
      rest.push_back(std::move(one));
    } else if (&all[kept++] != &one) {
      all[kept - 1] = std::move(one);
    }
  }
  std::move(rest.begin(), rest.end(), all.begin() + static_cast<std::ptrdiff_t>(kept));
}

class Nodes {
 public:
  virtual ~Nodes() = default;

  // Sends all commands, in one round trip for each node, and gives each its reply; null where there
  // was none. The status is the first failure of a node, where none answers; replies that are
  // errors are none. A cluster's answers that a key is elsewhere are followed once.
  virtual Status exchange(const std::vector<Command>& commands, std::vector<ReplyPtr>& replies) = 0;

  // Whether commands about several keys go to one node, so that they can be one command.
  virtual bool is_one_server() const = 0;

  // The last exchange met a server that must not be written to, so another one may be the primary.
  virtual void look_for_primary() = 0;

  // Makes one round trip to any node that answers.
  virtual Status ping() = 0;

  // The status that a reply stands for, without the credentials that a server may repeat.
  Status status_of(const ReplyPtr& reply) const {
    return backends::status_of(reply, options_.address);
  }

 protected:
  explicit Nodes(remote::BackendOptions options) : options_(std::move(options)) {}

  // How long an exchange may take where another node can answer. The caller waits for timeout_ms:
  // he would not get what the others answered if one that hangs took as long.
  std::int64_t exchange_ms() const {
    return std::max<std::int64_t>(options_.timeout_ms * 3 / 4, 1);
  }

  const remote::BackendOptions options_;
};

Result<std::unique_ptr<Nodes>> make_one_server(const remote::BackendOptions& options);
Result<std::unique_ptr<Nodes>> make_cluster(const remote::BackendOptions& options);

}  // namespace modcache::backends
