// SPDX-License-Identifier: Apache-2.0
#include "socket_stream.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

namespace server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kBufferBytes = 16'384;
constexpr std::size_t kMostUnsent = 65'536;

std::chrono::milliseconds until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return std::max(left, std::chrono::milliseconds{0});
}

bool wait_for(int socket, short events, std::chrono::milliseconds time) {
  pollfd waited{socket, events, 0};
  const Clock::time_point deadline = Clock::now() + time;
  for (;;) {
    const int ready = ::poll(&waited, 1, static_cast<int>(until(deadline).count()));
    if (ready >= 0 || errno != EINTR) return ready > 0;
  }
}

}  // namespace

bool wait_readable(int socket, std::chrono::milliseconds time) {
  return wait_for(socket, POLLIN, time);
}

SocketStream::SocketStream(int socket, const RequestBounds& bounds)
    : socket_(socket), bounds_(bounds), buffer_(kBufferBytes) {
  begin_request();
}

void SocketStream::begin_request() {
  has_answer_ = false;
  head_.clear();
  head_given_ = 0;
  head_bytes_ = 0;
  body_bytes_ = 0;
  arrival_deadline_ = Clock::now() + bounds_.arrival;
}

bool SocketStream::is_readable() const {
  return head_given_ < head_.text().size() || has_unread() ||
         wait_readable(socket_, until(arrival_deadline_));
}

bool SocketStream::read_head() {
  std::string line;  // of which a part has yet to come
  for (;;) {
    if (!has_unread() && !fill()) return false;
    const char* const from = buffer_.data() + begin_;
    const void* const end = std::memchr(from, '\n', end_ - begin_);
    const std::size_t count =
        end == nullptr ? end_ - begin_
                       : static_cast<std::size_t>(static_cast<const char*>(end) - from + 1);
    begin_ += count;
    head_bytes_ += count;
    if (is_too_long()) return false;
    const bool is_whole = line.empty() && end != nullptr;
    if (!is_whole) line.append(from, count);
    if (end == nullptr) continue;
    if (head_.add_line(is_whole ? std::string_view(from, count) : line)) return true;
    line.clear();
  }
}

bool SocketStream::fill() {
  // Who waits for "100 Continue" has to get it before anything comes.
  if (!flush() || !wait_readable(socket_, until(arrival_deadline_))) return false;
  ssize_t got = -1;
  do {
    got = ::recv(socket_, buffer_.data(), buffer_.size(), 0);
  } while (got < 0 && errno == EINTR);
  begin_ = 0;
  end_ = got > 0 ? static_cast<std::size_t>(got) : 0;
  return got > 0;
}

ssize_t SocketStream::read(char* to, std::size_t size) {
  const std::string& head = head_.text();
  if (head_given_ < head.size()) {
    const std::size_t count = std::min(size, head.size() - head_given_);
    std::memcpy(to, head.data() + head_given_, count);
    head_given_ += count;
    return static_cast<ssize_t>(count);
  }
  if (body_bytes_ >= bounds_.body_bytes) return -1;
  if (!has_unread() && !fill()) return -1;
  const std::size_t count = std::min({size, end_ - begin_, bounds_.body_bytes - body_bytes_});
  std::memcpy(to, buffer_.data() + begin_, count);
  begin_ += count;
  body_bytes_ += count;
  return static_cast<ssize_t>(count);
}

ssize_t SocketStream::write(const char* from, std::size_t size) {
  has_answer_ = true;
  unsent_.append(from, size);
  if (unsent_.size() >= kMostUnsent && !flush()) return -1;
  return is_broken_ ? -1 : static_cast<ssize_t>(size);
}

bool SocketStream::flush() {
  const Clock::time_point deadline = Clock::now() + bounds_.departure;
  std::size_t sent = 0;
  while (!is_broken_ && sent < unsent_.size()) {
    const ssize_t took =
        ::send(socket_, unsent_.data() + sent, unsent_.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (took > 0) {
      sent += static_cast<std::size_t>(took);
    } else if (took < 0 && errno != EINTR && errno != EAGAIN) {
      is_broken_ = true;
    } else if (!wait_for(socket_, POLLOUT, until(deadline))) {
      is_broken_ = true;
    }
  }
  unsent_.clear();
  return !is_broken_;
}

// Nothing here goes by addresses.
void SocketStream::get_remote_ip_and_port(std::string&, int&) const {}
void SocketStream::get_local_ip_and_port(std::string&, int&) const {}

}  // namespace server
