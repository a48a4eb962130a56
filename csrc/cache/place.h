// SPDX-License-Identifier: Apache-2.0
//
// Place: in which memory the memory tier holds the values of a scope. The cache only carries the
// word: a ValueFormat knows what it means, and moves values (value.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "base/mutex.h"

namespace modcache::cache {

struct Place {
  enum class Kind : std::uint8_t {
    kHost,    // ordinary memory
    kPinned,  // of the host, page-locked: an accelerator copies from it beside other work
    kDevice   // of the accelerator `device`
  };
  Kind kind = Kind::kHost;
  std::string device;  // "cuda:0"; empty unless kDevice

  bool is_host() const { return kind == Kind::kHost; }
};

// The places of this process by scope. Thread-safe; a forked child has those of its parent. Costs
// an atomic load while no scope has a place of its own.
class Places {
 public:
  Places();
  ~Places();
  Places(const Places&) = delete;
  Places& operator=(const Places&) = delete;

  void set(const std::string& scope, Place place);
  Place of(const std::string& scope);

 private:
  std::atomic<bool> has_any_{false};
  Mutex mutex_;
  std::unordered_map<std::string, Place> by_scope_ MODCACHE_GUARDED_BY(mutex_);
  std::uint64_t fork_registration_;
};

}  // namespace modcache::cache
