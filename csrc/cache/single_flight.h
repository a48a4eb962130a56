// SPDX-License-Identifier: Apache-2.0
//
// SingleFlight: several threads that miss one key at once run the module once. The first leads;
// the others wait for it and then look the key up again.
//
// Where the leader fails (its run raised) or takes longer than the waiters' patience, one waiter is
// let out to run beside it, at the next such time one more, then two, four, and so on. So a run
// that fails now and then costs a burst one more run, two hundred waiters for one that always fails
// are through after nine runs, and they never all run at once.
//
// Never a deadlock: a thread that leads already (a cached module inside a cached module) does
// not wait, no wait is longer than kLongestWait, and a child of fork starts without flights. By
// then, with the patience of run_times.h, all waiters of a key were let out long ago.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/fork.h"
#include "base/hash.h"
#include "base/mutex.h"
#include "store/store.h"

namespace modcache::cache {

class SingleFlight {
 public:
  using Duration = std::chrono::steady_clock::duration;
  // After this long a waiter runs the module itself, whatever else runs it: it bounds waits for a
  // batch of many flights.
  static constexpr std::chrono::seconds kLongestWait{600};

  // The right to run a key's module, or those of a batch's keys. Giving it up (destruction, in any
  // thread) ends the run: as a failure, unless one of the two words was said.
  class Lead {
   public:
    Lead() = default;
    ~Lead() { give_up(); }
    Lead(Lead&& other) noexcept;
    Lead& operator=(Lead&& other) noexcept;

    // The run gave something that waiters will find.
    void stored();
    // It gave nothing that may be kept, and another run would not either: the waiters run for
    // themselves, side by side.
    void kept_nothing();
    void give_up();
    bool is_held() const { return owner_ != nullptr; }
    // Returns whether a thread waits, or has waited, for the run of this key.
    bool is_awaited(const Digest128& address) const;

   private:
    friend class SingleFlight;
    struct Flight;
    SingleFlight* owner_ = nullptr;
    std::shared_ptr<Flight> flight_;
    std::thread::id thread_;
    bool has_stored_ = false;
    bool has_kept_nothing_ = false;
  };

  // The outcome of a wait.
  struct Waited {
    // All that was waited for has ended, and may have stored something: look again. Otherwise the
    // thread runs the module.
    bool look_again = false;
    Lead lead;  // held where it runs beside others, and should tell them of its end
  };

  SingleFlight();
  ~SingleFlight();
  SingleFlight(const SingleFlight&) = delete;
  SingleFlight& operator=(const SingleFlight&) = delete;

  // For a batch, which must not wait while it leads: the right to run every address that nobody
  // else leads, taken under one lock. `is_led[i]` says which. The Lead stands for all of them; it
  // is empty where there are none.
  Lead try_enter_all(std::span<const Digest128> addresses, std::vector<bool>& is_led);

  // Waits until nobody leads any of them. Does not wait in a thread that leads. `patience`: how
  // long a run may take before another one is begun beside it.
  Waited wait_all(std::span<const Digest128> addresses, Duration patience = kLongestWait);

  // How many runs have stored something so far.
  std::uint64_t completed_runs() const { return completed_runs_.load(std::memory_order_acquire); }

 private:
  using Flight = Lead::Flight;
  using FlightPtr = std::shared_ptr<Flight>;
  using Time = std::chrono::steady_clock::time_point;
  enum class Outcome { kLanded, kJoins, kTimedOut };

  // Flights, and the condition their waiters wait for. A forked child starts with another one: in
  // the old, threads that do not exist there wait for ever, and it cannot even be destroyed.
  struct Board {
    std::uint64_t fork_generation = modcache::fork_generation();
    CondVar landed;
    std::unordered_map<Digest128, FlightPtr, Digest128Hash> flights;
  };
  Board& board() MODCACHE_REQUIRES(mutex_);
  Outcome await(Board& board, Flight& flight, Time deadline, Duration patience)
      MODCACHE_REQUIRES(mutex_);
  // Lets some more of the waiters run.
  void let_more_run(Board& board, Flight& flight, Time now) MODCACHE_REQUIRES(mutex_);
  void end_run(Board& board, Flight& flight) MODCACHE_REQUIRES(mutex_);
  void land(Board& board, Flight& flight) MODCACHE_REQUIRES(mutex_);
  Lead lead_of(FlightPtr flight);

  Mutex mutex_;
  std::unique_ptr<Board> board_ MODCACHE_GUARDED_BY(mutex_) = std::make_unique<Board>();
  std::atomic<std::uint64_t> completed_runs_{0};
  std::uint64_t fork_registration_;
};

}  // namespace modcache::cache
