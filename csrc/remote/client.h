// SPDX-License-Identifier: Apache-2.0
//
// Client: the way to one server for all threads of a process. Work on a Backend is done by threads
// of the client's own, each with a connection, so that nobody waits longer than he said, whatever
// the server, a name lookup or a library does meanwhile.
//
// A failure opens the breaker: until the server answers a probe, which one of the
// client's threads makes, run() returns at once. Threads are made when there is work for them, up
// to kMostConnections. Thread-safe. A forked child starts with no threads and no connections, and
// leaves the parent's alone; and it asks a server that the parent had left alone at the fork.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/fork.h"
#include "base/mutex.h"
#include "base/result.h"
#include "remote/backend.h"

namespace modcache::remote {

class Client {
 public:
  static constexpr std::size_t kMostConnections = 8;
  static constexpr std::chrono::seconds kLongestGoodbye{2};
  using Clock = std::chrono::steady_clock;
  using MakeBackend = std::function<Result<std::unique_ptr<Backend>>()>;
  // It owns what it touches: the caller may be gone when it runs.
  using Work = std::function<Status(Backend&)>;
  // Called on any thread when the breaker opens (with the failure) and when it closes (ok). Not
  // called any more once the client is destroyed.
  using OnChange = std::function<void(const Status&)>;

  // Connects to nothing. `make_backend` is called once for each thread, and is tried again after it
  // failed.
  Client(MakeBackend make_backend, OnChange on_change);
  // Waits for work that is being done, for at most kLongestGoodbye: what a library does not come
  // back from by then is left to end by itself.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Ends the threads as the destructor does. Nothing is done, and `on_change` is not called, from
  // then on.
  void stop();

  // False while the server is left alone. Costs an atomic load.
  bool is_available() const;

  // Has the work done, and waits for it at most so long. kBusy: it was not done in time, or the
  // server is left alone; work that began goes on to its end. Otherwise what the work returned.
  Status run(Work work, std::chrono::milliseconds timeout);

  // The same for writes: one that was given up could reach the server after a newer one. The caller
  // goes on once the work has ended, or cannot begin any more; or with kBusy, once `is_stopping`.
  // It is asked often. The breaker opens after `timeout` all the same.
  Status run_to_end(Work work, std::chrono::milliseconds timeout,
                    const std::function<bool()>& is_stopping);

 private:
  class Crew;  // what the threads share, which outlives the client where one does not end

  const std::shared_ptr<Crew> crew_;
};

// Breaker: whether a server is to be left alone. It opens with a failure, for kFirstPause, and for
// twice as long with each failed probe, up to kLongestPause. While it is open nobody's call waits
// for the server: a thread of the client probes it once the pause is over, and closes the breaker
// when the probe succeeds. A server that answers probes and fails the calls after them is left
// alone for longer and longer, too. Thread-safe, also in a forked child; is_closed() is one atomic
// load.
class Breaker {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kFirstPause{1'000};
  static constexpr std::chrono::milliseconds kLongestPause{30'000};

  Breaker() : fork_registration_(hold_across_fork(mutex_)) {}
  ~Breaker() { stop_holding_across_fork(fork_registration_); }
  Breaker(const Breaker&) = delete;
  Breaker& operator=(const Breaker&) = delete;

  bool is_closed() const { return is_closed_.load(std::memory_order_acquire); }

  // A call failed. Returns whether that opened the breaker.
  bool note_failure();
  // The probe of an open breaker failed: the next pause is longer.
  void note_failed_probe();
  // The server answered a probe.
  void close();
  // The server answered a call.
  void note_success() {
    if (!is_proven_.load(std::memory_order_relaxed)) is_proven_.store(true);
  }

  // When an open breaker is to be probed.
  Clock::time_point probe_at();

 private:
  std::atomic<bool> is_closed_{true};
  std::atomic<bool> is_proven_{true};  // a call succeeded since the last failure
  Mutex mutex_;
  std::chrono::milliseconds pause_ MODCACHE_GUARDED_BY(mutex_) = kFirstPause;
  Clock::time_point probe_at_ MODCACHE_GUARDED_BY(mutex_){};
  std::uint64_t fork_registration_;
};

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
