// SPDX-License-Identifier: Apache-2.0
#include "work_queue.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace test_device {
namespace {

const pid_t g_process = ::getpid();
std::atomic<std::int64_t> g_delay_us{0};
// All queues. It is never destroyed, since threads use it until the process ends.
std::mutex& g_queues_mutex = *new std::mutex;
std::vector<WorkQueue*>& g_queues = *new std::vector<WorkQueue*>;

void refuse_forked_child() {
  if (!WorkQueue::is_of_this_process()) {
    throw std::runtime_error("the test device cannot be used in a forked child");
  }
}

// Threads that still copied while torch destroys its globals would crash.
void finish_all() {
  if (!WorkQueue::is_of_this_process()) return;
  WorkQueue::set_delay(std::chrono::microseconds(0));
  std::vector<WorkQueue*> queues;
  {
    const std::lock_guard<std::mutex> lock(g_queues_mutex);
    queues = g_queues;
  }
  for (WorkQueue* queue : queues) {
    try {
      queue->wait(queue->newest());
    } catch (const std::exception&) {  // nobody is left to be told
    }
  }
}

}  // namespace

bool WorkQueue::is_of_this_process() { return ::getpid() == g_process; }

void WorkQueue::set_delay(std::chrono::microseconds delay) { g_delay_us = delay.count(); }

WorkQueue::WorkQueue() {
  refuse_forked_child();
  {
    const std::lock_guard<std::mutex> lock(g_queues_mutex);
    if (g_queues.empty()) std::atexit(&finish_all);
    g_queues.push_back(this);
  }
  std::thread([this] { run_all(); }).detach();
}

WorkQueue::Ticket WorkQueue::enqueue(std::function<void()> work, Start start) {
  refuse_forked_child();
  const std::lock_guard<std::mutex> lock(mutex_);
  waiting_.push_back({std::move(work), start});
  changed_.notify_all();
  return ++newest_;
}

WorkQueue::Ticket WorkQueue::newest() const {
  refuse_forked_child();
  const std::lock_guard<std::mutex> lock(mutex_);
  return newest_;
}

bool WorkQueue::is_done(Ticket ticket) const {
  refuse_forked_child();
  const std::lock_guard<std::mutex> lock(mutex_);
  return done_ >= ticket;
}

void WorkQueue::wait_until_done(Ticket ticket) const {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= ticket; });
}

void WorkQueue::wait(Ticket ticket) {
  refuse_forked_child();
  wait_until_done(ticket);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void WorkQueue::follow(WorkQueue& other, Ticket ticket) {
  if (&other == this) return;
  enqueue([&other, ticket] { other.wait_until_done(ticket); }, Start::kAtOnce);
}

void WorkQueue::run_all() {
  while (true) {
    Work work;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return !waiting_.empty(); });
      work = std::move(waiting_.front());
      waiting_.pop_front();
    }
    if (work.start == Start::kDelayed && g_delay_us > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(g_delay_us));
    }
    std::exception_ptr failure;
    try {
      work.run();
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_ == nullptr) failure_ = failure;
    ++done_;
    changed_.notify_all();
  }
}

}  // namespace test_device
