// SPDX-License-Identifier: Apache-2.0
//
// SingleFlight: several threads that miss one key at once run the module once. The first leads;
// the others wait for it and then look the key up again.
//
// Never a deadlock: a thread that leads already (a cached module inside a cached module) does
// not wait, nobody waits on for a leader that seems to wait for a thread itself (leader_watch.h),
// no wait is longer than kLongestWait, and a child of fork starts without flights.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/fork.h"
#include "base/hash.h"
#include "base/mutex.h"
#include "store/store.h"

namespace modcache::cache {

class SingleFlight {
 public:
  // After this long a waiter runs the module itself: twice the work is better than none.
  static constexpr std::chrono::seconds kLongestWait{30};

  // The right to run a key's module, or those of a batch's keys. Giving it up (destruction, in any
  // thread) wakes the waiters.
  class Lead {
   public:
    Lead() = default;
    ~Lead() { give_up(); }
    Lead(Lead&& other) noexcept;
    Lead& operator=(Lead&& other) noexcept;

    // The run gave something that waiters will find. Without this word they run for themselves,
    // side by side.
    void stored();
    void give_up();
    bool is_held() const { return owner_ != nullptr; }

   private:
    friend class SingleFlight;
    struct Flight;
    SingleFlight* owner_ = nullptr;
    std::vector<Digest128> addresses_;
    std::shared_ptr<Flight> flight_;
  };

  SingleFlight();
  ~SingleFlight();
  SingleFlight(const SingleFlight&) = delete;
  SingleFlight& operator=(const SingleFlight&) = delete;

  // For a batch, which must not wait while it leads: the right to run every address that nobody
  // else leads, taken under one lock. `is_led[i]` says which. The Lead stands for all of them; it
  // is empty where there are none.
  Lead try_enter_all(const std::vector<Digest128>& addresses, std::vector<bool>& is_led);

  // Returns when nobody leads any of them, when a leader seems to wait for a thread, or after
  // kLongestWait; does not wait in a thread that leads. True: it is worth while to look again, for
  // all that was waited for has ended, and may have stored something.
  bool wait_all(const std::vector<Digest128>& addresses);

  // How many runs have stored something so far.
  std::uint64_t completed_runs() const { return completed_runs_.load(std::memory_order_acquire); }

 private:
  // Flights, and the condition their waiters wait for. A forked child starts with another one: in
  // the old, threads that do not exist there wait for ever, and it cannot even be destroyed.
  struct Board {
    std::uint64_t fork_generation = modcache::fork_generation();
    CondVar landed;
    std::unordered_map<Digest128, std::shared_ptr<Lead::Flight>, Digest128Hash> flights;
  };
  Board& board() MODCACHE_REQUIRES(mutex_);
  // Whether the flight has ended by then.
  bool await(Board& board, const Lead::Flight& flight,
             std::chrono::steady_clock::time_point deadline) MODCACHE_REQUIRES(mutex_);
  Lead lead(std::vector<Digest128> addresses, std::shared_ptr<Lead::Flight> flight);

  Mutex mutex_;
  std::unique_ptr<Board> board_ MODCACHE_GUARDED_BY(mutex_) = std::make_unique<Board>();
  std::atomic<std::uint64_t> completed_runs_{0};
  std::uint64_t fork_registration_;
};

}  // namespace modcache::cache
