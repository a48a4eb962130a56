// SPDX-License-Identifier: Apache-2.0
//
// One round trip over one connection, within a deadline: commands are appended, written at once,
// and their replies read in order. After a failure the connection has an error and is not used
// again.
#pragma once

#include <sys/time.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "backends/redis/reply.h"
#include "base/status.h"

struct valkeyContext;  // NOLINT(readability-identifier-naming): libvalkey's

namespace modcache::backends {

using Deadline = std::chrono::steady_clock::time_point;

// A time-out as libvalkey takes it.
timeval time_of(std::int64_t ms);

// The text of a connection's failure, as `host:port: reason`.
Status failure_of(const valkeyContext& connection);

Status append(valkeyContext& connection, const Command& command);
Status write_all(valkeyContext& connection, Deadline deadline);
// Null, with the failure in `status`, where none came in time.
ReplyPtr read_reply(valkeyContext& connection, Deadline deadline, Status& status);
// All three.
ReplyPtr ask(valkeyContext& connection, const Command& command, Deadline deadline, Status& status);

}  // namespace modcache::backends
