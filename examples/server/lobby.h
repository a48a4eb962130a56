// SPDX-License-Identifier: Apache-2.0
//
// The connections that no thread serves: those that wait for a place, and those that end. One
// thread looks after all of them, so that neither a flood of clients nor one that is slow to leave
// takes a thread from who is served.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace server {

struct ConnectionCounts {
  std::atomic<std::uint64_t> accepted{0};
  std::atomic<std::uint64_t> closed{0};
  std::atomic<std::uint64_t> refused{0};
};

class Lobby {
 public:
  // Takes the socket where there is a place. Must not block, and must not call the lobby.
  using Admit = std::function<bool(int socket)>;

  // `refusal` is the answer to those that find no place. REQUIRES: `counts` outlives it.
  Lobby(Admit admit, std::string refusal, ConnectionCounts& counts);
  // Returns once all connections have ended.
  ~Lobby();
  Lobby(const Lobby&) = delete;
  Lobby& operator=(const Lobby&) = delete;

  // Each owns the socket from here on, and does not block. Any thread.
  void enter(int socket);  // is admitted, or waits for a place for a moment, or is refused
  void leave(int socket);  // is closed so that the other side still reads what was sent
  // There may be a place again.
  void tell_of_place();
  // Returns once nobody waits for a place. REQUIRES: nobody enters any more.
  void empty();

 private:
  using Clock = std::chrono::steady_clock;
  enum class State { kWaits, kIsRefused, kLeaves };
  struct Guest {
    int socket;
    State state;
    Clock::time_point deadline;  // of the state
    std::size_t discarded = 0;   // bytes
  };
  using Guests = std::list<Guest>;

  void run();
  void admit_those_who_wait();
  std::vector<pollfd> watched(Clock::time_point& soonest) const;
  void look_after(const std::vector<pollfd>& sockets);
  void refuse(Guest& guest);
  static bool has_hung_up(Guest& guest);
  void add_leaver(int socket, State state, std::chrono::milliseconds time);
  void close(const Guest& guest);
  void wake() const;

  const Admit admit_;
  const std::string refusal_;
  ConnectionCounts& counts_;
  const int wake_;  // an eventfd
  std::mutex mutex_;
  Guests waiting_;
  Guests leaving_;
  std::atomic<std::size_t> waiting_count_{0};
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace server
