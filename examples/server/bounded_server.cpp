// SPDX-License-Identifier: Apache-2.0
#include "bounded_server.h"

#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "refusal.h"

namespace server {
namespace {

constexpr int kBacklog = 1024;
constexpr std::size_t kMostRequests = 1'000'000;  // of one connection: as good as no limit
// A client that has just connected has this time to send its request to a server that stops.
constexpr std::chrono::milliseconds kFirstRequest{300};
// Connections that are half made when the server stops are whole after this time.
constexpr std::chrono::milliseconds kHandshake{50};
constexpr std::chrono::milliseconds kMostAccepting{2000};

// An answer without cpp-httplib, of a connection that ends with it.
std::string last_answer(const std::string& status, const std::string& reason) {
  const std::string body = nlohmann::json({{"error", reason}})
                               .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
                           "\n";
  return "HTTP/1.1 " + status + "\r\nContent-Type: application/json\r\nConnection: close\r\n" +
         "Retry-After: 1\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

// Tasks run in the thread that accepts, since they only hand a connection on.
class NoQueue : public httplib::TaskQueue {
 public:
  void enqueue(std::function<void()> task) override { task(); }
  void shutdown() override {}
};

// The length that the request names; for chunks it is a word, which equals no number.
std::string length_of_body(const httplib::Request& request) {
  if (request.has_header("Transfer-Encoding")) return "chunked";
  const std::string length = request.get_header_value("Content-Length");
  return length.empty() ? "0" : length;
}

// A request that a thread serves.
struct Exchange {
  const SocketStream& stream;
  bool is_understood = false;
  bool is_last = false;  // of its connection
};
// cpp-httplib's handlers are told nothing of the connection; each has a thread of its own.
thread_local Exchange* exchange = nullptr;

}  // namespace

BoundedServer::BoundedServer(const ConnectionBounds& bounds)
    : bounds_(bounds), stopped_(::eventfd(0, EFD_CLOEXEC)) {
  if (stopped_ < 0) throw std::runtime_error(std::strerror(errno));
  set_tcp_nodelay(true);
  // Answers promise this time, and serve_connection() keeps it.
  set_keep_alive_timeout(std::chrono::ceil<std::chrono::seconds>(bounds_.idle).count());
  set_keep_alive_max_count(kMostRequests);
  set_post_routing_handler(&BoundedServer::end_or_keep);
  // The default has SO_REUSEPORT, and a second server would take half of the first one's requests.
  set_socket_options([](int socket) {
    const int on = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  });
  new_task_queue = []() -> httplib::TaskQueue* { return new NoQueue; };
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
  threads_ = std::make_unique<httplib::ThreadPool>(bounds_.connections);
  lobby_ = std::make_unique<Lobby>(
      [this](int socket) { return admit(socket); },
      last_answer("503 Service Unavailable", "all connections are in use; try again shortly"),
      counts_);
  const bool was_asked_to_stop = listen_after_bind();
  has_ended_ = true;
  lobby_->empty();
  threads_->shutdown();
  lobby_.reset();
  return was_asked_to_stop;
}

void BoundedServer::stop_serving() {
  // stop() does nothing to a server that has yet to begin.
  while (!is_running() && !has_ended_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  accept_those_who_came();
  stop();
  const std::uint64_t one = 1;
  if (::write(stopped_, &one, sizeof one) < 0) {  // cannot be, and connections end by themselves
  }
}

// A socket that stops listening resets the connections that it has not accepted yet, whose clients
// may have sent their requests. So the kernel first drops what would begin a connection, which
// clients take for a packet that was lost; then those that were made are accepted.
void BoundedServer::accept_those_who_came() const {
  constexpr unsigned kFlagsOfTcp = 13;  // where they are in a packet
  sock_filter program[] = {
      {BPF_LD | BPF_B | BPF_ABS, 0, 0, kFlagsOfTcp},
      {BPF_JMP | BPF_JSET | BPF_K, 0, 1, TH_SYN},
      {BPF_RET | BPF_K, 0, 0, 0},
      {BPF_RET | BPF_K, 0, 0, 0xffffffff},
  };
  const sock_fprog filter{4, static_cast<sock_filter*>(program)};
  // Where the system does not allow this, a connection that is made just now may be lost.
  ::setsockopt(svr_sock_, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter);
  std::this_thread::sleep_for(kHandshake);
  const auto deadline = std::chrono::steady_clock::now() + kMostAccepting;
  while (wait_readable(svr_sock_, std::chrono::milliseconds(0)) &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool BoundedServer::process_and_close_socket(int socket) {
  ++counts_.accepted;
  lobby_->enter(socket);
  return true;
}

bool BoundedServer::admit(int socket) {
  std::size_t serving = serving_;
  do {
    if (serving >= bounds_.connections) return false;
  } while (!serving_.compare_exchange_weak(serving, serving + 1));
  threads_->enqueue([this, socket] { serve_connection(socket); });
  return true;
}

void BoundedServer::serve_connection(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  {
    SocketStream stream(socket, bounds_.request);
    bool is_first = true;
    while (wait_for_request(stream, is_first) && serve_request(stream)) is_first = false;
  }
  --serving_;
  lobby_->tell_of_place();
  lobby_->leave(socket);
}

bool BoundedServer::wait_for_request(const SocketStream& stream, bool is_first) const {
  if (stream.has_unread()) return true;
  pollfd waited[] = {{stream.socket(), POLLIN, 0}, {stopped_, POLLIN, 0}};
  int ready = 0;
  do {
    ready = ::poll(static_cast<pollfd*>(waited), 2, static_cast<int>(bounds_.idle.count()));
  } while (ready < 0 && errno == EINTR);
  // A request that came just before the stop is answered.
  if (ready > 0 && waited[0].revents != 0) return true;
  return ready > 0 && is_first && wait_readable(stream.socket(), kFirstRequest);
}

bool BoundedServer::serve_request(SocketStream& stream) {
  stream.begin_request();
  const bool is_closing = is_draining_;  // then the answer says so
  Exchange current{stream};
  std::string failure;
  try {
    if (stream.read_head()) {
      exchange = &current;
      const bool was_served =
          process_request(stream, is_closing, current.is_last,
                          [&](httplib::Request&) { current.is_understood = true; });
      exchange = nullptr;
      current.is_last = current.is_last || !was_served;
    }
    if (!stream.has_answer() && stream.head_bytes() > 0) {
      failure = stream.is_too_long()
                    ? last_answer("431 Request Header Fields Too Large", "the headers are too long")
                    : last_answer("408 Request Timeout", "the request did not arrive in time");
    }
  } catch (const Refusal& refusal) {
    failure = last_answer("400 Bad Request", refusal.what());
  } catch (const std::exception&) {  // such as no memory for the headers
    return false;
  }
  if (!failure.empty()) stream.write(failure.data(), failure.size());
  return stream.flush() && failure.empty() && stream.has_answer() && !current.is_last;
}

// An answer has to say of its connection just that which happens to it.
void BoundedServer::end_or_keep(const httplib::Request& request, httplib::Response& response) {
  if (exchange == nullptr) return;
  // A body that was not read would be taken for the next request.
  const bool is_whole = exchange->is_understood &&
                        length_of_body(request) == std::to_string(exchange->stream.body_bytes());
  if (!is_whole || response.get_header_value("Connection") == "close") exchange->is_last = true;
  if (request.method == "HEAD") response.headers.erase("Accept-Ranges");  // answers are whole
  if (!exchange->is_last) return;
  response.headers.erase("Keep-Alive");
  response.headers.erase("Connection");
  response.set_header("Connection", "close");
}

}  // namespace server
