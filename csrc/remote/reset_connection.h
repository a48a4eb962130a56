// SPDX-License-Identifier: Apache-2.0
//
// How a connection is closed whose writes were given up.
#pragma once

#include <sys/socket.h>

namespace modcache::remote {

// Ends a TCP connection at once, and has the system throw away what was not sent yet: a write that
// was given up could otherwise reach the server long after a newer one, by another connection, did.
// Closing the socket ends nothing while a forked child has it as well. The caller closes it.
inline void reset_connection(int socket) {
  sockaddr nowhere{};
  nowhere.sa_family = AF_UNSPEC;
  // A socket that is none, or has no connection, needs nothing.
  (void)::connect(socket, &nowhere, sizeof nowhere);  // NOLINT(bugprone-unused-return-value)
}

}  // namespace modcache::remote
