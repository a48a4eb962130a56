// SPDX-License-Identifier: Apache-2.0
#include "bounded_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

namespace server {
namespace {

constexpr std::size_t kRefusers = 2;
constexpr std::size_t kMostQueued = 64;  // connections that wait for a thread
constexpr int kBacklog = 1024;
constexpr std::size_t kMostRequests = 1'000'000;  // of one connection: as good as no limit
constexpr std::chrono::milliseconds kGentleClose{300};
constexpr std::chrono::milliseconds kRefusal{100};

// An answer without cpp-httplib, of a connection that ends with it.
std::string last_answer(const std::string& status, const std::string& reason) {
  const std::string body = "{\"error\": \"" + reason + "\"}\n";
  return "HTTP/1.1 " + status + "\r\nContent-Type: application/json\r\nConnection: close\r\n" +
         "Retry-After: 1\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

// A pool that makes the accepting thread wait rather than queue without bound. More connections
// wait in the kernel then, which holds no handles of this process for them.
class BoundedPool : public httplib::ThreadPool {
 public:
  explicit BoundedPool(std::size_t threads) : httplib::ThreadPool(threads) {}
  void enqueue(std::function<void()> task) override {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      has_room_.wait(lock, [this] { return queued_ < kMostQueued; });
      ++queued_;
    }
    httplib::ThreadPool::enqueue([this, task = std::move(task)] {
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        --queued_;
      }
      has_room_.notify_one();
      task();
    });
  }

 private:
  std::mutex mutex_;
  std::condition_variable has_room_;
  std::size_t queued_ = 0;
};

// As the request names it, or what no number is equal to.
std::string length_of_body(const httplib::Request& request) {
  if (request.has_header("Transfer-Encoding")) return "chunked";
  const std::string length = request.get_header_value("Content-Length");
  return length.empty() ? "0" : length;
}

}  // namespace

BoundedServer::BoundedServer(const ConnectionBounds& bounds)
    : bounds_(bounds), stopped_(::eventfd(0, EFD_CLOEXEC)) {
  if (stopped_ < 0) throw std::runtime_error(std::strerror(errno));
  set_tcp_nodelay(true);
  // What answers promise; process_and_close_socket() keeps it.
  set_keep_alive_timeout(std::chrono::ceil<std::chrono::seconds>(bounds_.idle).count());
  set_keep_alive_max_count(kMostRequests);
  // The default has SO_REUSEPORT, and a second server would take half of the first one's requests.
  set_socket_options([](int socket) {
    const int on = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  });
  new_task_queue = [this]() -> httplib::TaskQueue* {
    return new BoundedPool(bounds_.connections + kRefusers);
  };
}

BoundedServer::~BoundedServer() { ::close(stopped_); }

int BoundedServer::bind(const std::string& host, int port) {
  errno = 0;
  const int bound = port == 0 ? bind_to_any_port(host) : (bind_to_port(host, port) ? port : -1);
  if (bound < 0) {
    throw std::runtime_error("cannot listen on " + host + ":" + std::to_string(port) + ": " +
                             (errno != 0 ? std::strerror(errno) : "is that an address of here?"));
  }
  ::listen(svr_sock_, kBacklog);  // cpp-httplib has 5
  return bound;
}

bool BoundedServer::serve() {
  const bool was_asked_to_stop = listen_after_bind();
  has_ended_ = true;
  return was_asked_to_stop;
}

void BoundedServer::stop_serving() {
  // stop() does nothing to a server that has yet to begin.
  while (!is_running() && !has_ended_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  stop();
  const std::uint64_t one = 1;
  if (::write(stopped_, &one, sizeof one) < 0) {  // cannot be, and connections end by themselves
  }
}

bool BoundedServer::process_and_close_socket(int socket) {
  ++accepted_;
  if (open_.fetch_add(1) >= bounds_.connections) {
    refuse(socket);
  } else {
    serve_connection(socket);
  }
  --open_;
  ++closed_;
  return true;
}

void BoundedServer::refuse(int socket) {
  ++refused_;
  // An answer that comes before the request would be taken for none by some clients.
  wait_readable(socket, kRefusal);
  const std::string answer =
      last_answer("503 Service Unavailable", "all connections are in use; try again shortly");
  ::send(socket, answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  close_gently(socket, kRefusal);
}

void BoundedServer::serve_connection(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  SocketStream stream(socket, bounds_.request);
  while (wait_for_request(stream) && serve_request(stream)) {
  }
  close_gently(socket, kGentleClose);
}

bool BoundedServer::wait_for_request(const SocketStream& stream) const {
  if (stream.has_unread()) return true;
  pollfd waited[] = {{stream.socket(), POLLIN, 0}, {stopped_, POLLIN, 0}};
  int ready = 0;
  do {
    ready = ::poll(static_cast<pollfd*>(waited), 2, static_cast<int>(bounds_.idle.count()));
  } while (ready < 0 && errno == EINTR);
  // A request that came just before the stop is answered.
  return ready > 0 && waited[0].revents != 0;
}

bool BoundedServer::serve_request(SocketStream& stream) {
  stream.begin_request();
  const bool is_closing = is_draining_;  // then the answer says so
  std::size_t header_bytes = 0;
  std::string body_bytes;
  bool is_last = false;
  const bool was_served =
      process_request(stream, is_closing, is_last, [&](httplib::Request& request) {
        stream.begin_body();
        header_bytes = stream.bytes_read();
        body_bytes = length_of_body(request);
        request.ranges.clear();  // what is served here is whole
      });
  if (!stream.has_answer() && stream.bytes_read() > 0) {
    const std::string answer =
        stream.is_too_long()
            ? last_answer("431 Request Header Fields Too Large", "the headers are too long")
            : last_answer("408 Request Timeout", "the request did not arrive in time");
    stream.write(answer.data(), answer.size());
  }
  if (!stream.flush() || !was_served || is_last || is_closing) return false;
  // A body that was not read would be taken for the next request.
  return body_bytes == std::to_string(stream.bytes_read() - header_bytes);
}

}  // namespace server
