// SPDX-License-Identifier: Apache-2.0
//
// A server of plain HTTP in the test's own process, on a loopback port: GET with ranges, HEAD, PUT
// and DELETE of objects that it keeps in memory. A test may answer any request otherwise.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace modcache::testing {

struct TinyRequest {
  std::string method;
  std::string path;
  std::string head;  // all lines of the request's head
  std::string body;
};

struct TinyResponse {
  int code = 200;
  std::string headers;  // whole lines, each with its \r\n
  std::string body;
  std::string raw;         // if not empty, sent as it is
  bool is_silent = false;  // nothing is sent, and the connection stays open
  bool hangs_up = false;   // nothing is sent, and the connection is closed
  int ms_between_bytes = 0;
};

class TinyHttpServer {
 public:
  // Returns whether it has answered; otherwise the server does.
  using Answer = std::function<bool(const TinyRequest&, TinyResponse&)>;

  TinyHttpServer() {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address);
    ::listen(listener_, 64);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_until_stopped(); });
  }
  ~TinyHttpServer() {
    is_stopping_ = true;
    acceptor_.join();
    for (std::thread& thread : threads_) thread.join();
    ::close(listener_);
  }
  TinyHttpServer(const TinyHttpServer&) = delete;
  TinyHttpServer& operator=(const TinyHttpServer&) = delete;

  std::uint16_t port() const { return port_; }
  void answer_with(Answer answer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    answer_ = std::move(answer);
  }
  std::map<std::string, std::string> objects() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return objects_;
  }
  void set_object(const std::string& path, const std::string& bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    objects_[path] = bytes;
  }
  void remove_object(const std::string& path) {
    const std::lock_guard<std::mutex> lock(mutex_);
    objects_.erase(path);
  }
  // "GET /path", in order.
  std::vector<std::string> requests() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return requests_;
  }
  void forget_requests() {
    const std::lock_guard<std::mutex> lock(mutex_);
    requests_.clear();
  }

 private:
  bool wait_for(int socket) const {
    while (!is_stopping_) {
      pollfd waiting{socket, POLLIN, 0};
      if (::poll(&waiting, 1, 20) > 0) return true;
    }
    return false;
  }
  void accept_until_stopped() {
    while (wait_for(listener_)) {
      const int connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (connection >= 0) threads_.emplace_back([this, connection] { serve(connection); });
    }
  }
  bool read_more(int connection, std::string& buffer) const {
    if (!wait_for(connection)) return false;
    char bytes[65536];
    const ssize_t count = ::recv(connection, bytes, sizeof bytes, 0);
    if (count > 0) buffer.append(bytes, static_cast<std::size_t>(count));
    return count > 0;
  }
  static std::string header(const std::string& head, const std::string& name) {
    const std::size_t at = head.find("\r\n" + name + ": ");
    if (at == std::string::npos) return "";
    const std::size_t from = at + name.size() + 4;
    return head.substr(from, head.find("\r\n", from) - from);
  }
  void send_all(int connection, const std::string& bytes, int ms_between_bytes) const {
    std::size_t sent = 0;
    while (sent < bytes.size() && !is_stopping_) {
      const std::size_t size = ms_between_bytes > 0 ? 1 : bytes.size() - sent;
      const ssize_t count = ::send(connection, bytes.data() + sent, size, MSG_NOSIGNAL);
      if (count <= 0) return;
      sent += static_cast<std::size_t>(count);
      if (ms_between_bytes > 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(ms_between_bytes));
      }
    }
  }

  void serve(int connection) {
    std::string buffer;
    while (serve_one(connection, buffer)) {
    }
    ::close(connection);
  }
  bool serve_one(int connection, std::string& buffer) {
    std::size_t end = 0;
    while ((end = buffer.find("\r\n\r\n")) == std::string::npos) {
      if (!read_more(connection, buffer)) return false;
    }
    TinyRequest request;
    request.head = buffer.substr(0, end + 2);
    request.method = request.head.substr(0, request.head.find(' '));
    const std::size_t from = request.method.size() + 1;
    request.path = request.head.substr(from, request.head.find(' ', from) - from);
    buffer.erase(0, end + 4);
    if (!header(request.head, "Expect").empty()) {
      send_all(connection, "HTTP/1.1 100 Continue\r\n\r\n", 0);
    }
    const auto size = static_cast<std::size_t>(
        std::strtoull(header(request.head, "Content-Length").c_str(), nullptr, 10));
    while (buffer.size() < size) {
      if (!read_more(connection, buffer)) return false;
    }
    request.body = buffer.substr(0, size);
    buffer.erase(0, size);
    return respond(connection, request);
  }
  bool respond(int connection, const TinyRequest& request) {
    TinyResponse response;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      requests_.push_back(request.method + " " + request.path);
      if (!answer_ || !answer_(request, response)) {
        response = {};
        answer(request, response);
      }
    }
    if (response.hangs_up) return false;
    if (response.is_silent) return wait_for(-1);
    std::string bytes = response.raw;
    if (bytes.empty()) {
      bytes = "HTTP/1.1 " + std::to_string(response.code) + " Word\r\n" + response.headers +
              "Content-Length: " + std::to_string(response.body.size()) + "\r\n\r\n";
      if (request.method != "HEAD") bytes += response.body;
    }
    send_all(connection, bytes, response.ms_between_bytes);
    return true;
  }
  void answer(const TinyRequest& request, TinyResponse& response) {
    if (request.method == "PUT") {
      objects_[request.path] = request.body;
      response.code = 201;
      return;
    }
    const auto found = objects_.find(request.path);
    if (found == objects_.end()) {
      response.code = 404;
      return;
    }
    if (request.method == "DELETE") {
      objects_.erase(found);
      response.code = 204;
      return;
    }
    response.body = found->second;
    const std::string range = header(request.head, "Range");
    if (range.empty()) return;
    const std::size_t equals = range.find('=') + 1;
    const std::size_t first = std::strtoull(range.c_str() + equals, nullptr, 10);
    const std::size_t last = std::strtoull(range.c_str() + range.find('-') + 1, nullptr, 10);
    if (first >= response.body.size()) {
      response.code = 416;
      response.body.clear();
      return;
    }
    response.code = 206;
    response.body = response.body.substr(first, last - first + 1);
  }

  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::atomic<bool> is_stopping_{false};
  std::mutex mutex_;
  Answer answer_;
  std::map<std::string, std::string> objects_;
  std::vector<std::string> requests_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace modcache::testing
