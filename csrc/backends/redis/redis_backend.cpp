// SPDX-License-Identifier: Apache-2.0
#include "backends/redis/redis_backend.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/redis/chunks.h"
#include "backends/redis/nodes.h"
#include "backends/redis/reply.h"
#include "base/random.h"

namespace modcache::backends {
namespace {

using remote::NamedValue;

// More names than this in one command would hold up a server's other clients.
constexpr std::size_t kNamesAtOnce = 512;
// So much of large values is asked for, or written, in one round trip.
constexpr std::size_t kChunksAtOnce = 16;
constexpr std::string_view kRemoveScript =
    "if redis.call('GET',KEYS[1])~=ARGV[1] then return 0 end return redis.call('DEL',KEYS[1])";

class RedisBackend final : public remote::Backend {
 public:
  explicit RedisBackend(std::unique_ptr<Nodes> nodes) : nodes_(std::move(nodes)) {}

  Status get_all(const std::vector<std::string>& names, std::vector<SharedBytes>& values) override;
  Status put_all(const std::vector<NamedValue>& values, std::int64_t ttl_ms,
                 std::vector<bool>& are_stored) override;
  Status remove_all(const std::vector<std::string>& names) override;
  Result<bool> put_if_absent(const NamedValue& value) override;
  Result<bool> remove_if(std::string_view name, std::string_view expected) override;
  Status ping() override { return nodes_->ping(); }

 private:
  Status get_some(const std::string* names, std::size_t count, SharedBytes* values);
  Status get_with_one_command(const std::string* names, std::size_t count, SharedBytes* values);
  Status get_chunks(const std::string& name, SharedBytes& value);
  Status get_chunked_heads(const std::vector<std::string>& names, std::vector<SharedBytes>& values);
  Status put_some(const NamedValue* values, std::size_t count, const std::string& ttl,
                  std::vector<bool>& are_stored, std::size_t first);
  Status put_chunks(const NamedValue& value, const std::string& ttl, bool& is_stored);
  Status one(const Command& command, ReplyPtr& reply);
  Status refusal_of(const ReplyPtr& reply);

  const std::unique_ptr<Nodes> nodes_;
};

// A key that somebody else uses for another kind of value is not there for us.
bool is_wrong_type(const ReplyPtr& reply) {
  return is_error(reply) && text_of(reply).substr(0, 9) == "WRONGTYPE";
}

Command set_command(const std::string& name, std::string_view value, const std::string& ttl) {
  Command command{{"SET", name, value}, &name};
  if (!ttl.empty()) {
    command.arguments.emplace_back("PX");
    command.arguments.emplace_back(ttl);
  }
  return command;
}

std::string ttl_text(std::int64_t ttl_ms) { return ttl_ms > 0 ? std::to_string(ttl_ms) : ""; }

Status RedisBackend::one(const Command& command, ReplyPtr& reply) {
  std::vector<ReplyPtr> replies;
  MODCACHE_RETURN_IF_ERROR(nodes_->exchange({command}, replies));
  reply = std::move(replies.front());
  // The others answer.
  if (reply == nullptr) return Status::not_found("the node of the key does not answer");
  const Status status = nodes_->status_of(reply);
  if (status.code() == StatusCode::kForeign) nodes_->look_for_primary();
  return status;
}

// Ok unless the server does not let us write. A slot of a cluster that nobody serves or that moves,
// or a node that is loading, concerns its keys alone.
Status RedisBackend::refusal_of(const ReplyPtr& reply) {
  if (!is_error(reply)) return Status::ok();
  Status status = nodes_->status_of(reply);
  if (status.code() == StatusCode::kForeign) nodes_->look_for_primary();
  const bool is_of_key = status.code() == StatusCode::kIoError && !nodes_->is_one_server();
  return is_of_key ? Status::ok() : status;
}

Status RedisBackend::get_with_one_command(const std::string* names, std::size_t count,
                                          SharedBytes* values) {
  Command command{{"MGET"}, names};
  for (std::size_t i = 0; i < count; ++i) command.arguments.emplace_back(names[i]);
  ReplyPtr reply;
  MODCACHE_RETURN_IF_ERROR(one(command, reply));
  if (!is_array(reply, count)) return Status::io_error("it answers as no server of this kind does");
  for (std::size_t i = 0; i < count; ++i) values[i] = bytes_of_element(reply, i);
  return Status::ok();
}

Status RedisBackend::get_some(const std::string* names, std::size_t count, SharedBytes* values) {
  if (nodes_->is_one_server()) return get_with_one_command(names, count, values);
  std::vector<Command> commands;
  commands.reserve(count);
  for (std::size_t i = 0; i < count; ++i) commands.push_back({{"GET", names[i]}, names + i});
  std::vector<ReplyPtr> replies;
  MODCACHE_RETURN_IF_ERROR(nodes_->exchange(commands, replies));
  Status first;
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = bytes_of(replies[i]);
    if (first.is_ok() && is_error(replies[i]) && !is_wrong_type(replies[i])) {
      first = nodes_->status_of(replies[i]);
    }
  }
  // A slot that nobody serves, or a node that is loading, concerns its keys alone.
  const bool is_refused = first.code() == StatusCode::kInvalidArgument;
  return is_refused ? first : Status::ok();
}

Status RedisBackend::get_chunks(const std::string& name, SharedBytes& value) {
  const auto head = decode_chunked_head(value.view());
  value = {};
  std::string whole;
  for (std::size_t begin = 0; begin < head->chunks(); begin += kChunksAtOnce) {
    const std::size_t end = std::min(begin + kChunksAtOnce, head->chunks());
    std::vector<std::string> names;
    for (std::size_t chunk = begin; chunk < end; ++chunk) names.push_back(chunk_name(name, chunk));
    std::vector<SharedBytes> pieces(names.size());
    MODCACHE_RETURN_IF_ERROR(get_some(names.data(), names.size(), pieces.data()));
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (pieces[i].owner == nullptr) return Status::ok();
      const auto piece = decode_chunk(*head, begin + i, pieces[i].view());
      if (!piece.has_value()) return Status::ok();
      // A head is not believed before the first pieces are there.
      if (whole.empty()) whole.reserve(static_cast<std::size_t>(head->size_bytes));
      whole.append(*piece);
    }
  }
  value = share_bytes(std::move(whole));
  return Status::ok();
}

Status RedisBackend::get_all(const std::vector<std::string>& names,
                             std::vector<SharedBytes>& values) {
  values.assign(names.size(), {});
  for (std::size_t begin = 0; begin < names.size(); begin += kNamesAtOnce) {
    const std::size_t count = std::min(kNamesAtOnce, names.size() - begin);
    MODCACHE_RETURN_IF_ERROR(get_some(names.data() + begin, count, values.data() + begin));
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (values[i].owner == nullptr || !decode_chunked_head(values[i].view()).has_value()) continue;
    MODCACHE_RETURN_IF_ERROR(get_chunks(names[i], values[i]));
  }
  return Status::ok();
}

Status RedisBackend::get_chunked_heads(const std::vector<std::string>& names,
                                       std::vector<SharedBytes>& values) {
  const std::string last = std::to_string(kChunkedHeadBytes - 1);
  values.assign(names.size(), {});
  for (std::size_t begin = 0; begin < names.size(); begin += kNamesAtOnce) {
    const std::size_t end = std::min(begin + kNamesAtOnce, names.size());
    std::vector<Command> commands;
    for (std::size_t i = begin; i < end; ++i) {
      commands.push_back({{"GETRANGE", names[i], "0", last}, &names[i]});
    }
    std::vector<ReplyPtr> replies;
    MODCACHE_RETURN_IF_ERROR(nodes_->exchange(commands, replies));
    for (std::size_t i = begin; i < end; ++i) {
      const ReplyPtr& reply = replies[i - begin];
      // A name that is not there has an empty range.
      const SharedBytes bytes = bytes_of(reply);
      if (bytes.owner != nullptr && bytes.size_bytes > 0) values[i] = bytes;
      const Status status = reply != nullptr ? nodes_->status_of(reply) : Status::ok();
      if (status.code() == StatusCode::kInvalidArgument) return status;
    }
  }
  return Status::ok();
}

Status RedisBackend::put_some(const NamedValue* values, std::size_t count, const std::string& ttl,
                              std::vector<bool>& are_stored, std::size_t first) {
  std::vector<Command> commands;
  commands.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    commands.push_back(set_command(values[i].name, values[i].value, ttl));
  }
  std::vector<ReplyPtr> replies;
  MODCACHE_RETURN_IF_ERROR(nodes_->exchange(commands, replies));
  Status refusal;
  for (std::size_t i = 0; i < count; ++i) {
    are_stored[first + i] = replies[i] != nullptr && !is_error(replies[i]);
    if (refusal.is_ok()) refusal = refusal_of(replies[i]);
  }
  return refusal;
}

Status RedisBackend::put_chunks(const NamedValue& value, const std::string& ttl, bool& is_stored) {
  const ChunkedHead head{random_number(), value.value.size()};
  std::vector<bool> are_stored(kChunksAtOnce, false);
  for (std::size_t begin = 0; begin < head.chunks(); begin += kChunksAtOnce) {
    const std::size_t end = std::min(begin + kChunksAtOnce, head.chunks());
    std::vector<NamedValue> pieces;
    pieces.reserve(end - begin);
    for (std::size_t chunk = begin; chunk < end; ++chunk) {
      pieces.push_back({chunk_name(value.name, chunk), encode_chunk(head, value.value, chunk)});
    }
    MODCACHE_RETURN_IF_ERROR(put_some(pieces.data(), pieces.size(), ttl, are_stored, 0));
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (!are_stored[i]) return Status::ok();
    }
  }
  const NamedValue named{value.name, encode_chunked_head(head)};
  MODCACHE_RETURN_IF_ERROR(put_some(&named, 1, ttl, are_stored, 0));
  is_stored = are_stored[0];
  return Status::ok();
}

Status RedisBackend::put_all(const std::vector<NamedValue>& values, std::int64_t ttl_ms,
                             std::vector<bool>& are_stored) {
  are_stored.assign(values.size(), false);
  const std::string ttl = ttl_text(ttl_ms);
  std::size_t begin = 0;
  while (begin < values.size()) {
    if (values[begin].value.size() > kChunkBytes) {
      bool is_stored = false;
      MODCACHE_RETURN_IF_ERROR(put_chunks(values[begin], ttl, is_stored));
      are_stored[begin++] = is_stored;
      continue;
    }
    std::size_t end = begin + 1;
    while (end < values.size() && end - begin < kNamesAtOnce &&
           values[end].value.size() <= kChunkBytes) {
      ++end;
    }
    MODCACHE_RETURN_IF_ERROR(put_some(values.data() + begin, end - begin, ttl, are_stored, begin));
    begin = end;
  }
  return Status::ok();
}

Status RedisBackend::remove_all(const std::vector<std::string>& names) {
  std::vector<std::string> all = names;
  std::vector<SharedBytes> values;
  MODCACHE_RETURN_IF_ERROR(get_chunked_heads(names, values));
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto head =
        values[i].owner == nullptr ? std::nullopt : decode_chunked_head(values[i].view());
    const std::size_t chunks = head.has_value() ? head->chunks() : 0;
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      all.push_back(chunk_name(names[i], chunk));
    }
  }
  bool are_left = false;
  for (std::size_t begin = 0; begin < all.size(); begin += kNamesAtOnce) {
    const std::size_t end = std::min(begin + kNamesAtOnce, all.size());
    std::vector<Command> commands;
    for (std::size_t i = begin; i < end; ++i) commands.push_back({{"UNLINK", all[i]}, &all[i]});
    std::vector<ReplyPtr> replies;
    MODCACHE_RETURN_IF_ERROR(nodes_->exchange(commands, replies));
    for (const ReplyPtr& reply : replies) {
      MODCACHE_RETURN_IF_ERROR(refusal_of(reply));
      are_left = are_left || reply == nullptr || is_error(reply);
    }
  }
  return are_left ? Status::not_found("a part of the cluster cannot be asked to remove its values")
                  : Status::ok();
}

Result<bool> RedisBackend::put_if_absent(const NamedValue& value) {
  const std::string no_ttl;
  Command command = set_command(value.name, value.value, no_ttl);
  command.arguments.emplace_back("NX");
  ReplyPtr reply;
  MODCACHE_RETURN_IF_ERROR(one(command, reply));
  return !is_null(reply);
}

Result<bool> RedisBackend::remove_if(std::string_view name, std::string_view expected) {
  const std::string key(name);
  ReplyPtr reply;
  MODCACHE_RETURN_IF_ERROR(one({{"EVAL", kRemoveScript, "1", key, expected}, &key}, reply));
  return integer_of(reply) == 1;
}

}  // namespace

Result<std::unique_ptr<remote::Backend>> make_redis_backend(const remote::BackendOptions& options) {
  const bool is_cluster = options.address.engine == remote::Engine::kRedisCluster;
  MODCACHE_ASSIGN_OR_RETURN(std::unique_ptr<Nodes> nodes,
                            is_cluster ? make_cluster(options) : make_one_server(options));
  return std::unique_ptr<remote::Backend>(std::make_unique<RedisBackend>(std::move(nodes)));
}

}  // namespace modcache::backends
