// SPDX-License-Identifier: Apache-2.0
//
// SlotMap: which node of a cluster has which slots, as CLUSTER SLOTS answers it. A node is named by
// its address, `host:port`.
#pragma once

#include <valkey/cluster.h>
#include <valkey/valkey.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/redis/reply.h"

namespace modcache::backends {

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

}  // namespace modcache::backends
