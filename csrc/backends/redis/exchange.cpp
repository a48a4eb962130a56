// SPDX-License-Identifier: Apache-2.0
#include "backends/redis/exchange.h"

#include <valkey/valkey.h>

#include <cerrno>
#include <cstddef>
#include <vector>

namespace modcache::backends {
namespace {

bool is_over(valkeyContext& connection, Deadline deadline) {
  if (std::chrono::steady_clock::now() < deadline) return false;
  connection.err = VALKEY_ERR_TIMEOUT;  // replies that come later must not answer other commands
  return true;
}

}  // namespace

timeval time_of(std::int64_t ms) {
  timeval time{};
  time.tv_sec = static_cast<time_t>(ms / 1000);
  time.tv_usec = static_cast<suseconds_t>(ms % 1000 * 1000);
  return time;
}

Status failure_of(const valkeyContext& connection) {
  std::string where = connection.unix_sock.path != nullptr ? connection.unix_sock.path : "";
  if (connection.tcp.host != nullptr) {
    where = std::string(connection.tcp.host) + ":" + std::to_string(connection.tcp.port);
  }
  const bool is_late = connection.err == VALKEY_ERR_TIMEOUT ||
                       (connection.err == VALKEY_ERR_IO && (errno == EAGAIN || errno == ETIMEDOUT));
  if (is_late) return Status::busy(where + " did not answer in time");
  return Status::io_error(where + ": " + connection.errstr);
}

Status append(valkeyContext& connection, const Command& command) {
  std::vector<const char*> texts;
  std::vector<std::size_t> sizes;
  for (const std::string_view argument : command.arguments) {
    texts.push_back(argument.data());
    sizes.push_back(argument.size());
  }
  const int outcome = valkeyAppendCommandArgv(&connection, static_cast<int>(texts.size()),
                                              texts.data(), sizes.data());
  return outcome == VALKEY_OK ? Status::ok() : failure_of(connection);
}

Status write_all(valkeyContext& connection, Deadline deadline) {
  int is_done = 0;
  while (is_done == 0) {
    if (valkeyBufferWrite(&connection, &is_done) != VALKEY_OK) return failure_of(connection);
    if (is_done == 0 && is_over(connection, deadline)) return failure_of(connection);
  }
  return Status::ok();
}

ReplyPtr read_reply(valkeyContext& connection, Deadline deadline, Status& status) {
  while (true) {
    void* reply = nullptr;
    if (valkeyGetReplyFromReader(&connection, &reply) != VALKEY_OK) break;
    if (reply != nullptr) return take_reply(reply);
    if (is_over(connection, deadline)) break;
    if (valkeyBufferRead(&connection) != VALKEY_OK) break;
  }
  status = failure_of(connection);
  return nullptr;
}

ReplyPtr ask(valkeyContext& connection, const Command& command, Deadline deadline, Status& status) {
  status = append(connection, command);
  if (status.is_ok()) status = write_all(connection, deadline);
  return status.is_ok() ? read_reply(connection, deadline, status) : nullptr;
}

}  // namespace modcache::backends
