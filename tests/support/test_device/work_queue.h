// SPDX-License-Identifier: Apache-2.0
//
// One stream of the test device: a thread that does what it was given, in order, some time later.
//
// Thread-safe. A queue lives until the process ends; a forked child has no threads, so that every
// method except is_of_this_process() throws there.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>

namespace test_device {

class WorkQueue {
 public:
  // The number of a piece of work in its queue, from 1 on. 0 is done from the beginning.
  using Ticket = std::uint64_t;
  enum class Start : std::uint8_t { kDelayed, kAtOnce };

  WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // Appends work, and returns at once. What it throws is thrown by the next wait().
  Ticket enqueue(std::function<void()> work, Start start = Start::kDelayed);
  // Returns the ticket of the newest work.
  Ticket newest() const;
  bool is_done(Ticket ticket) const;
  void wait(Ticket ticket);
  // Makes work of this queue that is appended from now on wait for `ticket` of `other`.
  void follow(WorkQueue& other, Ticket ticket);

  // Sets how long each piece of delayed work of every queue is put off before it starts.
  static void set_delay(std::chrono::microseconds delay);
  static bool is_of_this_process();

 private:
  struct Work {
    std::function<void()> run;
    Start start;
  };

  [[noreturn]] void run_all();
  void wait_until_done(Ticket ticket) const;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<Work> waiting_;
  Ticket newest_ = 0;
  Ticket done_ = 0;
  std::exception_ptr failure_;
};

}  // namespace test_device
