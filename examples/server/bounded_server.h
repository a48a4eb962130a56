// SPDX-License-Identifier: Apache-2.0
//
// cpp-httplib's server with bounds on all that a client can make it hold.
//
// A connection has a thread from its first byte until it is closed, since cpp-httplib serves a
// keep-alive connection in one thread. So there are as many threads as connections may be open, and
// two more, which tell the next ones that the server is full.
#pragma once

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "socket_stream.h"

namespace server {

struct ConnectionBounds {
  std::size_t connections = 64;
  RequestBounds request;
  std::chrono::milliseconds idle{30'000};
};

class BoundedServer : public httplib::Server {
 public:
  explicit BoundedServer(const ConnectionBounds& bounds);
  ~BoundedServer() override;
  BoundedServer(const BoundedServer&) = delete;
  BoundedServer& operator=(const BoundedServer&) = delete;

  // Returns the port. Throws std::runtime_error with the reason.
  int bind(const std::string& host, int port);
  // Serves until stop_serving(), and returns once each request that was read has its answer. False:
  // the socket failed.
  bool serve();

  // From now on each answer says that its connection ends. New connections are still served.
  void drain() { is_draining_ = true; }
  bool is_draining() const { return is_draining_; }
  // No new connections; those that wait for a request are closed. REQUIRES: serve() is called, in
  // another thread.
  void stop_serving();

  std::uint64_t accepted() const { return accepted_; }
  std::uint64_t closed() const { return closed_; }
  std::uint64_t refused() const { return refused_; }

 private:
  bool process_and_close_socket(int socket) override;
  void serve_connection(int socket);
  bool serve_request(SocketStream& stream);
  bool wait_for_request(const SocketStream& stream) const;
  void refuse(int socket);

  const ConnectionBounds bounds_;
  int stopped_ = -1;  // an eventfd, readable once stop_serving() was called
  std::atomic<bool> is_draining_{false};
  std::atomic<bool> has_ended_{false};
  std::atomic<std::size_t> open_{0};
  std::atomic<std::uint64_t> accepted_{0};
  std::atomic<std::uint64_t> closed_{0};
  std::atomic<std::uint64_t> refused_{0};
};

}  // namespace server
