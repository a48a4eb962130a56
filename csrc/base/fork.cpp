// SPDX-License-Identifier: Apache-2.0
#include "base/fork.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <map>
#include <thread>
#include <utility>
#include <vector>

namespace modcache {
namespace {

struct Registry {
  Mutex pause;  // see ForkPause
  Mutex mutex;
  std::uint64_t next_registration = 1;
  std::map<std::uint64_t, Mutex*> held;  // by handle, hence in order of registration
  std::vector<std::function<void()>> child_actions;
};

std::atomic<std::uint64_t> generation{0};
thread_local int pauses_of_this_thread = 0;

Registry& registry();

bool try_lock_all(Registry& state) MODCACHE_LOCKS_UNCHECKED {
  if (!state.pause.try_lock()) return false;
  if (!state.mutex.try_lock()) {
    state.pause.unlock();
    return false;
  }
  for (auto entry = state.held.begin(); entry != state.held.end(); ++entry) {
    if (entry->second->try_lock()) continue;
    while (entry != state.held.begin()) (--entry)->second->unlock();
    state.mutex.unlock();
    state.pause.unlock();
    return false;
  }
  return true;
}

// Threads take these mutexes in orders of their own, and register new ones while they hold others.
// Waiting for one of them with another one held could therefore wait for ever, so this takes all of
// them or none.
void before_fork() {
  constexpr std::chrono::microseconds kPause{50};
  while (!try_lock_all(registry())) std::this_thread::sleep_for(kPause);
}

void release_all(Registry& state) MODCACHE_LOCKS_UNCHECKED {
  for (auto entry = state.held.rbegin(); entry != state.held.rend(); ++entry) {
    entry->second->unlock();
  }
  state.mutex.unlock();
  state.pause.unlock();
}

void in_parent() { release_all(registry()); }

void in_child() {
  generation.fetch_add(1, std::memory_order_relaxed);
  Registry& state = registry();
  release_all(state);
  for (const auto& action : state.child_actions) action();
}

// Never destroyed: a process may fork while it exits.
Registry& registry() {
  static Registry* const instance = [] {
    auto* created = new Registry;
    pthread_atfork(before_fork, in_parent, in_child);
    return created;
  }();
  return *instance;
}

// Made when the library is loaded. At its first use another thread might fork while it is made, and
// the child would wait for it for ever.
[[gnu::constructor]] void make_registry() { registry(); }

}  // namespace

std::uint64_t fork_generation() {
  static Registry& installed = registry();
  (void)installed;
  return generation.load(std::memory_order_relaxed);
}

ForkPause::ForkPause() MODCACHE_LOCKS_UNCHECKED {
  if (pauses_of_this_thread == 0) registry().pause.lock();
  ++pauses_of_this_thread;
}

ForkPause::~ForkPause() MODCACHE_LOCKS_UNCHECKED {
  if (--pauses_of_this_thread == 0) registry().pause.unlock();
}

std::uint64_t hold_across_fork(Mutex& mutex) {
  Registry& state = registry();
  MutexLock lock(state.mutex);
  state.held.emplace(state.next_registration, &mutex);
  return state.next_registration++;
}

void stop_holding_across_fork(std::uint64_t registration) {
  Registry& state = registry();
  MutexLock lock(state.mutex);
  state.held.erase(registration);
}

void run_in_forked_child(std::function<void()> action) {
  Registry& state = registry();
  MutexLock lock(state.mutex);
  state.child_actions.push_back(std::move(action));
}

}  // namespace modcache
