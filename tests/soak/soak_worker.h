// SPDX-License-Identifier: Apache-2.0
//
// One process of the soak: calls through a cache, at random, until it is killed or its time is up.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace modcache::soak {

// In memory that all processes share.
struct Counts {
  std::atomic<std::int64_t> hits{0};
  std::atomic<std::int64_t> misses{0};
  std::atomic<std::int64_t> wrong{0};
  std::atomic<std::int64_t> errors{0};   // that caches counted
  std::atomic<std::int64_t> corrupt{0};  // entries that caches found broken
  std::atomic<std::int64_t> clears{0};
  std::atomic<std::int64_t> verifications{0};
  std::atomic<std::int64_t> damage{0};  // that verifications found
};

struct WorkerOptions {
  std::string directory;
  std::uint64_t budget_bytes = 0;
  std::uint64_t keys = 0;
  std::uint64_t seed = 0;
  std::int64_t milliseconds = 0;
};

void work(const WorkerOptions& options, Counts& counts);

}  // namespace modcache::soak
