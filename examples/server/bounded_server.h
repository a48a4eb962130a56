// SPDX-License-Identifier: Apache-2.0
//
// cpp-httplib's server with bounds on all that a client can make it hold.
//
// A connection has a thread from its first byte until its last answer has left, since cpp-httplib
// serves a keep-alive connection in one thread. So there are as many threads as connections may be
// served. The thread that accepts only hands connections on, and never waits.
#pragma once

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "lobby.h"
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
  // Serves the connections that were made so far, and no new ones; those that wait for a request
  // after their first are closed. REQUIRES: serve() is called, in another thread.
  void stop_serving();

  std::uint64_t accepted() const { return counts_.accepted; }
  std::uint64_t closed() const { return counts_.closed; }
  std::uint64_t refused() const { return counts_.refused; }

 private:
  bool process_and_close_socket(int socket) override;
  bool admit(int socket);
  void serve_connection(int socket);
  void accept_those_who_came() const;
  bool serve_request(SocketStream& stream);
  static void end_or_keep(const httplib::Request& request, httplib::Response& response);
  bool wait_for_request(const SocketStream& stream, bool is_first) const;

  const ConnectionBounds bounds_;
  int stopped_ = -1;  // an eventfd, readable once stop_serving() was called
  std::atomic<bool> is_draining_{false};
  std::atomic<bool> has_ended_{false};
  std::atomic<std::size_t> serving_{0};
  ConnectionCounts counts_;
  // While serve() runs.
  std::unique_ptr<httplib::ThreadPool> threads_;
  std::unique_ptr<Lobby> lobby_;
};

}  // namespace server
