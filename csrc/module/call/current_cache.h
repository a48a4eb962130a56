// SPDX-License-Identifier: Apache-2.0
//
// The current cache: the one that a call of this thread uses. That is the cache of the innermost
// guard of the thread, or the default of the process. Threads of torch.jit.fork inherit it; other
// threads do not.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/custom_class.h>

#include <memory>

#include "cache/cache.h"

namespace modcache::module {

// Throws a ValueError where the thread has caches of asyncio tasks that overlap.
cache::CachePtr current_cache();

// The cache of a thread.
struct ThreadCache {
  cache::CachePtr cache;             // null: the default
  bool is_of_several_tasks = false;  // their caches differ, and nothing says whose call it is
};
// Sets it for this thread, and returns what it was.
ThreadCache set_thread_cache(ThreadCache cache);

// While it lives, calls of this thread use `cache`. Guards nest; each is destroyed by the thread
// that made it, in the reverse order, as scopes do.
class [[nodiscard]] CacheGuard {
 public:
  explicit CacheGuard(cache::CachePtr cache) : previous_(set_thread_cache({std::move(cache)})) {}
  ~CacheGuard() { set_thread_cache(std::move(previous_)); }
  CacheGuard(const CacheGuard&) = delete;
  CacheGuard& operator=(const CacheGuard&) = delete;

 private:
  ThreadCache previous_;
};

// A cache as Python and C++ hosts have it.
struct HeldCache : torch::CustomClassHolder {
  explicit HeldCache(cache::CachePtr held) : cache(std::move(held)) {}
  const cache::CachePtr cache;
};

}  // namespace modcache::module
