// SPDX-License-Identifier: Apache-2.0
//
// Nodes: the server or servers behind one address, to which commands go.
#pragma once

#include <valkey/cluster.h>
#include <valkey/valkey.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/redis/exchange.h"
#include "backends/redis/reply.h"
#include "base/mutex.h"
#include "base/process_wide.h"
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

// SlotMap: which node of a cluster has which slots, as CLUSTER SLOTS answers it. A node is named by
// its address, `host:port`.
class SlotMap {
 public:
  // Nothing: it is no such answer, or names no node. A node that does not know its own host is at
  // the one that was asked.
  static std::optional<SlotMap> of(const ReplyPtr& reply, const std::string& asked_host) {
    if (reply == nullptr || reply->type != VALKEY_REPLY_ARRAY) return std::nullopt;
    SlotMap map;
    for (std::size_t i = 0; i < reply->elements; ++i) {
      if (!map.add(*reply->element[i], asked_host)) return std::nullopt;
    }
    return map.nodes_.empty() ? std::nullopt : std::optional<SlotMap>(std::move(map));
  }

  // Those that have slots.
  const std::vector<std::string>& nodes() const { return nodes_; }
  bool has(const std::string& node) const {
    return std::find(nodes_.begin(), nodes_.end(), node) != nodes_.end();
  }
  // Null: nobody has the key's slot. REQUIRES: the key has no zeros.
  const std::string* node_of(const std::string& key) const {
    // The library only reads the key.
    return node_at(valkeyClusterGetSlotByKey(const_cast<char*>(key.c_str())));
  }

 private:
  static constexpr std::size_t kSlots = VALKEYCLUSTER_SLOTS;
  static constexpr std::size_t kNobody = kSlots;

  const std::string* node_at(std::size_t slot) const {
    const std::size_t node = slot < owners_.size() ? owners_[slot] : kNobody;
    return node < nodes_.size() ? &nodes_[node] : nullptr;
  }

  // A range is [first, last, [host, port, ...] of the primary, ... of the replicas].
  bool add(const valkeyReply& range, const std::string& asked_host) {
    if (range.type != VALKEY_REPLY_ARRAY || range.elements < 3) return false;
    const valkeyReply& first = *range.element[0];
    const valkeyReply& last = *range.element[1];
    const valkeyReply& primary = *range.element[2];
    const bool is_range = first.type == VALKEY_REPLY_INTEGER && last.type == VALKEY_REPLY_INTEGER &&
                          first.integer >= 0 && first.integer <= last.integer &&
                          last.integer < static_cast<long long>(kSlots);
    if (!is_range || primary.type != VALKEY_REPLY_ARRAY || primary.elements < 2) return false;
    const valkeyReply& host = *primary.element[0];
    const valkeyReply& port = *primary.element[1];
    if (port.type != VALKEY_REPLY_INTEGER || port.integer < 1 || port.integer > UINT16_MAX) {
      return false;
    }
    const bool is_named = host.type == VALKEY_REPLY_STRING && host.len > 0;
    const std::string node = (is_named ? std::string(host.str, host.len) : asked_host) + ":" +
                             std::to_string(port.integer);
    const auto found = std::find(nodes_.begin(), nodes_.end(), node);
    const auto place = static_cast<std::size_t>(found - nodes_.begin());
    if (found == nodes_.end()) nodes_.push_back(node);
    if (owners_.empty()) owners_.assign(kSlots, static_cast<std::uint16_t>(kNobody));
    std::fill(owners_.begin() + first.integer, owners_.begin() + last.integer + 1,
              static_cast<std::uint16_t>(place));
    return true;
  }

  std::vector<std::string> nodes_;
  std::vector<std::uint16_t> owners_;  // by slot: the place in nodes_, or kNobody
};

// NodeHealth: which nodes of clusters, and which of several hosts, failed a moment ago, for all
// backends of a process. A node is left alone for kFirstPause, and for twice as long each time that
// it fails again, up to kLongestPause; a success ends that. After a pause one caller tries it while
// the others go on leaving it alone, so that a node which does not answer costs a process about one
// time-out for each pause. Thread-safe; usable in a forked child.
class NodeHealth : public ProcessWide<NodeHealth> {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kFirstPause{1'000};
  static constexpr std::chrono::milliseconds kLongestPause{30'000};

  bool has_failed(const std::string& node) {
    MutexLock lock(mutex);
    return failed_.count(node) != 0;
  }
  bool is_left_alone(const std::string& node) {
    MutexLock lock(mutex);
    const auto found = failed_.find(node);
    return found != failed_.end() && Clock::now() < found->second.until;
  }
  // Whoever is told true tries the node, and notes how that ended.
  bool may_try(const std::string& node) {
    MutexLock lock(mutex);
    const auto found = failed_.find(node);
    if (found == failed_.end()) return true;
    Failed& failed = found->second;
    if (Clock::now() < failed.until) return false;
    failed.until = Clock::now() + failed.pause;
    failed.is_tried = true;
    return true;
  }
  // Threads that were waiting for the node when it failed note one failure together.
  void note_failure(const std::string& node) {
    MutexLock lock(mutex);
    if (failed_.size() > kMostNodes) failed_.clear();
    const auto now = Clock::now();
    const auto [found, is_new] = failed_.try_emplace(node);
    Failed& failed = found->second;
    if (!is_new && !failed.is_tried && now < failed.until) return;
    if (!is_new) failed.pause = std::min(failed.pause * 2, kLongestPause);
    failed.until = now + failed.pause;
    failed.is_tried = false;
  }
  void note_success(const std::string& node) {
    MutexLock lock(mutex);
    failed_.erase(node);
  }

 private:
  static constexpr std::size_t kMostNodes = 10'000;
  struct Failed {
    Clock::time_point until;
    std::chrono::milliseconds pause = kFirstPause;
    bool is_tried = false;
  };

  std::map<std::string, Failed> failed_ MODCACHE_GUARDED_BY(mutex);
};

}  // namespace modcache::backends
