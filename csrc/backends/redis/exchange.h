// SPDX-License-Identifier: Apache-2.0
//
// Connections, and round trips over them, within a deadline. Commands are written at once, to all
// connections of an exchange, and replies are read from whichever has some, so that one server
// which hangs holds up no other. After a failure a connection has an error and is not used again.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backends/redis/reply.h"
#include "backends/redis/tls.h"
#include "base/status.h"
#include "remote/address.h"

struct valkeyContext;  // NOLINT(readability-identifier-naming): libvalkey's

namespace modcache::backends {

using Deadline = std::chrono::steady_clock::time_point;
using ContextPtr = std::unique_ptr<valkeyContext, void (*)(valkeyContext*)>;

Deadline deadline_in(std::int64_t ms);
bool is_over(Deadline deadline);
// The deadline of one try, which leaves time for what comes after it.
Deadline half_way_to(Deadline deadline);

bool has_no_error(const valkeyContext& connection);
// The text of a connection's failure, as `host:port: reason`.
Status failure_of(const valkeyContext& connection);

// Has the system throw away what was not sent yet when the connection is closed. A write that was
// given up could otherwise reach the server long after a newer one, by another connection, did.
void drop_unsent_on_close(const valkeyContext& connection);

// The same for a connection that a forked child has as well, and frees it.
void close_at_once(valkeyContext* connection);

// A connection with TLS and credentials as the address says. A null host is the address's socket.
// Null, with the failure in `status`, where there is none in time. kInvalidArgument: the server
// refuses the credentials.
ContextPtr connect_to(const remote::Host* host, const remote::Address& address,
                      const TlsSettings& tls, Deadline deadline, Status& status);

// Those commands of an exchange that go over one connection, whose replies come in their order.
class Pipeline {
 public:
  // `which` are the places of the commands, and of their replies. The connection outlives it.
  Pipeline(valkeyContext& connection, std::vector<std::size_t> which);
  Pipeline(Pipeline&& other) noexcept;
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;
  Pipeline& operator=(Pipeline&&) = delete;
  // The connection gets an error unless all replies were read, as one that is left, for whatever
  // reason, would answer a command of the next exchange.
  ~Pipeline();

  // Sends what the system takes at once.
  void start(const std::vector<Command>& commands);
  // Sends the rest, and reads replies as they come. `replies` has a place for each command of the
  // exchange. kBusy in status(): not all came in time.
  static void finish(std::vector<Pipeline>& pipelines, Deadline deadline,
                     std::vector<ReplyPtr>& replies);

  const Status& status() const { return status_; }

 private:
  bool is_waiting() const { return status_.is_ok() && answered_ < which_.size(); }
  void write();
  void read(Deadline deadline, std::vector<ReplyPtr>& replies);
  void take_replies(std::vector<ReplyPtr>& replies);
  void fail(int error, const char* reason);

  valkeyContext* connection_;
  std::vector<std::size_t> which_;
  std::size_t answered_ = 0;
  std::uint64_t received_bytes_ = 0;
  bool is_written_ = false;
  Status status_;
};

// One round trip over one connection; `replies` gets one for each command, null where none came.
Status ask_all(valkeyContext& connection, const std::vector<Command>& commands, Deadline deadline,
               std::vector<ReplyPtr>& replies);
ReplyPtr ask(valkeyContext& connection, const Command& command, Deadline deadline, Status& status);

}  // namespace modcache::backends
