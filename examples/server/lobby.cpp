// SPDX-License-Identifier: Apache-2.0
#include "lobby.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace server {
namespace {

// Clients that connect anew for each request may come back before their place is free.
constexpr std::chrono::milliseconds kWait{50};
// An answer that comes before the request would be taken for none by some clients.
constexpr std::chrono::milliseconds kRequestOfRefused{100};
constexpr std::chrono::milliseconds kLeave{300};
constexpr std::size_t kMostWaiting = 32;
constexpr std::size_t kMostLeaving = 128;
constexpr std::size_t kDiscardedBytes = 16'384;
constexpr std::size_t kMostDiscarded = std::size_t{64} << 20;

}  // namespace

Lobby::Lobby(Admit admit, std::string refusal, ConnectionCounts& counts)
    : admit_(std::move(admit)),
      refusal_(std::move(refusal)),
      counts_(counts),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (wake_ < 0) throw std::runtime_error(std::strerror(errno));
  thread_ = std::thread([this] { run(); });
}

Lobby::~Lobby() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
  }
  wake();
  thread_.join();
  ::close(wake_);
}

void Lobby::enter(int socket) {
  // Who came before comes first.
  if (waiting_count_ == 0 && admit_(socket)) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (waiting_.size() < kMostWaiting) {
      waiting_.push_back({socket, State::kWaits, Clock::now() + kWait});
      waiting_count_ = waiting_.size();
    } else {
      add_leaver(socket, State::kIsRefused, kRequestOfRefused);
    }
  }
  wake();
}

void Lobby::leave(int socket) {
  ::shutdown(socket, SHUT_WR);
  Guest guest{socket, State::kLeaves, {}};
  if (has_hung_up(guest)) {
    close(guest);
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    add_leaver(socket, State::kLeaves, kLeave);
  }
  wake();
}

void Lobby::tell_of_place() {
  if (waiting_count_ != 0) wake();
}

void Lobby::empty() {
  while (waiting_count_ != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void Lobby::run() {
  for (;;) {
    std::vector<pollfd> sockets;
    Clock::time_point soonest = Clock::time_point::max();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      admit_those_who_wait();
      sockets = watched(soonest);
      if (is_ending_ && sockets.size() == 1) return;
    }
    int time = -1;
    if (soonest != Clock::time_point::max()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(soonest - Clock::now());
      time = std::max(0, static_cast<int>(left.count()));
    }
    ::poll(sockets.data(), sockets.size(), time);
    std::uint64_t ignored = 0;
    if (::read(wake_, &ignored, sizeof ignored) < 0) {  // nobody woke it
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    look_after(sockets);
  }
}

void Lobby::admit_those_who_wait() {
  while (!waiting_.empty() && admit_(waiting_.front().socket)) waiting_.pop_front();
  waiting_count_ = waiting_.size();
}

std::vector<pollfd> Lobby::watched(Clock::time_point& soonest) const {
  std::vector<pollfd> sockets = {{wake_, POLLIN, 0}};
  for (const Guest& guest : leaving_) {
    sockets.push_back({guest.socket, POLLIN, 0});
    soonest = std::min(soonest, guest.deadline);
  }
  // Nobody reads yet from those who wait, so that only their time matters.
  if (!waiting_.empty()) soonest = std::min(soonest, waiting_.front().deadline);
  return sockets;
}

void Lobby::look_after(const std::vector<pollfd>& sockets) {
  const Clock::time_point now = Clock::now();
  while (!waiting_.empty() && waiting_.front().deadline <= now) {
    add_leaver(waiting_.front().socket, State::kIsRefused, kRequestOfRefused);
    waiting_.pop_front();
  }
  waiting_count_ = waiting_.size();
  for (auto guest = leaving_.begin(); guest != leaving_.end();) {
    const bool is_ready = std::any_of(sockets.begin(), sockets.end(), [&](const pollfd& socket) {
      return socket.fd == guest->socket && socket.revents != 0;
    });
    const bool is_late = guest->deadline <= now;
    if (guest->state == State::kIsRefused && (is_ready || is_late)) {
      refuse(*guest);
    } else if (guest->state == State::kLeaves && (is_late || (is_ready && has_hung_up(*guest)))) {
      close(*guest);
      guest = leaving_.erase(guest);
      continue;
    }
    ++guest;
  }
}

void Lobby::refuse(Guest& guest) {
  ++counts_.refused;
  ::send(guest.socket, refusal_.data(), refusal_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  ::shutdown(guest.socket, SHUT_WR);
  guest.state = State::kLeaves;
  guest.deadline = Clock::now() + kLeave;
}

// A socket that is closed with unread bytes takes the answer back, so they are read.
bool Lobby::has_hung_up(Guest& guest) {
  char discarded[kDiscardedBytes];
  const ssize_t got =
      ::recv(guest.socket, static_cast<void*>(discarded), sizeof discarded, MSG_DONTWAIT);
  if (got > 0) guest.discarded += static_cast<std::size_t>(got);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR) ||
         guest.discarded > kMostDiscarded;
}

void Lobby::add_leaver(int socket, State state, std::chrono::milliseconds time) {
  if (leaving_.size() == kMostLeaving) {
    Guest& oldest = leaving_.front();
    if (oldest.state == State::kIsRefused) refuse(oldest);
    has_hung_up(oldest);
    close(oldest);
    leaving_.pop_front();
  }
  leaving_.push_back({socket, state, Clock::now() + time});
}

void Lobby::close(const Guest& guest) {
  ::close(guest.socket);
  ++counts_.closed;
}

void Lobby::wake() const {
  const std::uint64_t one = 1;
  if (::write(wake_, &one, sizeof one) < 0) {  // it is awake already
  }
}

}  // namespace server
